"""Where either format will do: the more accurate of equally cheap assignments, and no Cast where nothing is won."""

import numpy as np
import pytest

from mpdeploy.numerics.formats import Format

RANDOM = np.random.default_rng(0)
TAIL = """g (float[8,64] x, float[64,256] u, float[256,4] v) => (float[8,4] boxes) {
    [wide] h = MatMul(x, u)  [act] r = Relu(h)  [head] t = MatMul(r, v)
    [squash] s = Sigmoid(t)  scale = Constant<value_float = 128.0>()  [decode] boxes = Mul(s, scale)
}"""
FEED = {
    "x": RANDOM.standard_normal((8, 64)).astype(np.float32),
    "u": RANDOM.standard_normal((64, 256)).astype(np.float32) / 8,
    "v": RANDOM.standard_normal((256, 4)).astype(np.float32) / 16,
}
# Nothing would have to be cast, and nothing stored is saved: integers come in, truth values go out.
IDLE = """g (uint8[n,64] i) => (bool[n,64] y) {
    [enter] x = Cast<to = 1>(i)  k = Constant<value_float = 0.5>()  [half] a = Mul(x, k)  [clip] r = Relu(a)
    t = Constant<value_float = 3.0>()  [decide] y = Greater(r, t)
}"""


def formats(plan):
    return {decision.node: decision.format for decision in plan.decisions}


@pytest.mark.parametrize("outputs", ["float[8,4] boxes", "float[8,4] boxes, float[8,256] r"])
def test_a_small_tail_behind_the_last_product_stays_fp32(workshop, outputs):
    # S4: a box decode ran in BF16 though its outputs are FP32 and nothing behind the head is large.
    found = formats(workshop.plan_of(workshop.source(TAIL.replace("float[8,4] boxes", outputs, 1)), data=[FEED]))
    assert {name: found[name] for name in ("wide", "head")} == dict.fromkeys(("wide", "head"), Format.FP16)
    assert {name: found[name] for name in ("squash", "decode")} == dict.fromkeys(("squash", "decode"), Format.FP32)


def test_a_piece_without_a_product_is_not_lowered(workshop):
    # A28: quantised models got a few low decisions and no product in FP16: rounding for nothing.
    plan = workshop.plan_of(workshop.source(IDLE))
    assert set(formats(plan).values()) == {Format.FP32}
