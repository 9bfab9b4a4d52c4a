"""Masked softmax: low where that is exact, FP32 where it is not."""

import numpy as np
import pytest

from mpdeploy.conversion.trial import distance
from mpdeploy.graph import io
from mpdeploy.runtime.choose import truthful_runner

LOWEST = "-3.4028235e38"
EYE = ", ".join("1.0" if i % 5 == 0 else "0.0" for i in range(16))
# Between two matrix products, as in attention: low precision is then the cheapest, unless something forbids it.
FRAME = (
    "g (float[2,4] x, bool[2,4] m) => (float[2,4] y) {{ w = Constant<value = float[4,4] {{"
    + EYE
    + """}}>()  q = MatMul(x, w)  zero = Constant<value = float {{0.0}}>()  low = Constant<value = float {{{low}}}>()
    MASK  [softmax] p = Softmax<axis = -1>(s)  y = MatMul(p, w) }}"""
)
ADDED = FRAME.replace("MASK", "b = Where(m, zero, low)  [masked] s = Add(q, b)")
CHOSEN = FRAME.replace("MASK", "[masked] s = Where(m, q, low)")
SUMMED = FRAME.replace("MASK", "b = Where(m, zero, low)  f = Add(b, b)  [masked] s = Add(q, f)")

SCORES = np.float32([[-20, 2, 3, 4], [-20, -30, -40, -17]])
SOME = np.array([[1, 1, 0, 1], [0, 1, 1, 0]], bool)
ROW = np.array([[1, 1, 0, 0], [0, 0, 0, 0]], bool)  # the second row is masked everywhere


def converted(workshop, text, mask, precision):
    feed = {"x": SCORES, "m": mask}
    plan = workshop.plan(text, precision, data=workshop.feed(**feed))
    paths = [workshop.folder / name for name in ("source.onnx", "made.onnx")]
    reference, got = (truthful_runner(io.load(p), str(p)).run(feed)["y"] for p in paths)
    softmax = next(d for d in plan.decisions if d.op == "Softmax")
    return softmax, distance(reference, got)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("mask", [SOME, ROW])
@pytest.mark.parametrize("text", [ADDED, CHOSEN])
def test_a_float_min_mask_runs_low_and_keeps_masked_rows(workshop, text, mask, precision):
    softmax, drift = converted(workshop, text.format(low=LOWEST), mask, precision)
    assert (softmax.format.value, softmax.code, softmax.saturate) == (precision, "MP003", True)
    assert drift < (0.005 if precision == "fp16" else 0.03)


@pytest.mark.parametrize("text", [ADDED, SUMMED])
def test_without_a_fully_masked_row_any_mask_runs_low(workshop, text):
    softmax, drift = converted(workshop, text.format(low="-1e9"), SOME, "fp16")
    assert softmax.format.value == "fp16"
    assert drift < 0.005


@pytest.mark.parametrize("text", [ADDED, SUMMED])
def test_a_sentinel_that_does_not_absorb_stays_fp32_on_masked_rows(workshop, text):
    # At -1e9 float32 still tells scores apart by steps of 64: the masked row is not uniform.
    softmax, drift = converted(workshop, text.format(low="-1e9"), ROW, "fp16")
    assert softmax.format.value == "fp32"
    assert drift < 0.005


def test_a_real_infinity_needs_no_guard(workshop):
    softmax, drift = converted(workshop, ADDED.format(low="-inf"), SOME, "fp16")
    assert not softmax.saturate
    assert drift < 0.005
