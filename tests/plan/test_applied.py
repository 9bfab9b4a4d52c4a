"""Plans that are applied: every flag beside them counts or is refused, and what a person set is told as such."""

import dataclasses

import numpy as np
import pytest

from mpdeploy import records
from mpdeploy.conversion.api import convert
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.record import PrecisionPlan

TEXT = """g (float[2,4] x, float[4,4] w) => (float[2,4] y) {
    [first] a = MatMul(x, w)  [soft] s = Softmax<axis = -1>(a)  [second] y = MatMul(s, w)
}"""
FEED = {"x": np.ones((2, 4), np.float32), "w": np.eye(4, dtype=np.float32)}


@pytest.fixture
def made(workshop):
    """A plan made from data, at its path, and a function that applies it with further words."""
    source, path = workshop.source(TEXT), workshop.folder / "made.plan.json"
    workshop.plan_of(source, data=[FEED])

    def apply(**words):
        low = workshop.folder / "applied.onnx"
        result = convert(source, low, precision="fp16", plan=path, **words)
        return result, records.load(PrecisionPlan, workshop.folder / "applied.plan.json")

    return path, apply


def test_a_plan_of_an_earlier_version_decides_more_and_is_applied(workshop):
    # Until then the scales of a Resize, which nobody computes with, were a decision of their own.
    text = """g (float[1,2,4,4] x, float[2,2,1,1] w) => (float[1,2,8,8] y)
        <float[4] scales = {1, 1, 2, 2}, float[0] roi = {}> {
        a = Conv(x, w)  [up] r = Resize<mode = "nearest">(a, roi, scales)  y = Conv(r, w) }"""
    source, path = workshop.source(text, opset=11), workshop.folder / "earlier.plan.json"
    plan = workshop.plan_of(source)
    first, second, *rest = plan.decisions
    scales = dataclasses.replace(first, node="up:scales", op="Resize", values=(), format=Format.FP32, code="MP301")
    records.save(dataclasses.replace(plan, decisions=(first, scales, *rest, second)), path)
    convert(source, workshop.folder / "again.onnx", precision="fp16", plan=path)
    again = records.load(PrecisionPlan, workshop.folder / "again.plan.json")
    assert [d.node for d in again.decisions] == [d.node for d in plan.decisions]
    assert (workshop.folder / "again.onnx").read_bytes() == (workshop.folder / "made.onnx").read_bytes()


def test_nodes_that_trained_in_fp32_stay_so_and_those_without_floats_do_not_count(workshop):
    source = workshop.source(TEXT)
    plan = workshop.plan_of(source, trained_fp32=["second", "a node that computes sizes"], policy="fast")
    formats = {d.node: (d.format.value, d.reason) for d in plan.decisions}
    assert formats["first"][0] == "fp16"
    assert formats["second"] == ("fp32", "MP601 asked for by the user: it computed in FP32 in training")


def test_what_is_kept_beside_a_plan_becomes_fp32(made):
    # A3: five flags beside --plan were dropped without a word.
    _, apply = made
    for words, name in (({"keep_fp32": ("sof*",)}, "soft"), ({"op_fp32": ("Softmax",)}, "soft")):
        result, plan = apply(**words)
        (decision,) = (d for d in plan.decisions if d.node == name)
        assert (decision.format, decision.code) == (Format.FP32, "MP601")
        assert result.low_operators == 2
    with pytest.raises(UsageError, match="matches 'nosuch'"):
        apply(keep_fp32=("nosuch",))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"policy": "safe"}, "--policy has no effect"),
        ({"ranges": "missing.json"}, "--ranges has no effect"),
        ({"low_io": True}, "--low-io does not"),
        ({"target": "openvino"}, "for target any"),
    ],
)
def test_what_a_plan_cannot_heed_is_refused(made, words, said):
    _, apply = made
    with pytest.raises(UsageError, match=said):
        apply(**words)


def test_ranges_beside_data_are_refused(workshop):
    with pytest.raises(UsageError, match="not both"):
        workshop.plan(TEXT, data=[FEED], ranges="missing.json")


def test_a_plan_is_tried_on_the_data_given_with_it(made):
    _, apply = made
    assert apply()[0].trial is None
    assert apply(data=[FEED])[0].trial.within


def test_what_a_person_set_is_told_as_such_and_no_measurement_goes_with_it(made):
    # A4: "fp32 … MP001 arithmetic that pays in low precision", and the first plan's trial.
    path, apply = made
    plan = records.load(PrecisionPlan, path)
    assert plan.trial is not None
    edited = [dataclasses.replace(d, format=Format.FP32) if d.node == "second" else d for d in plan.decisions]
    records.save(dataclasses.replace(plan, decisions=tuple(edited)), path)
    result, applied = apply()
    assert {d.node: d.code for d in applied.decisions} == {"first": "MP001", "soft": "MP002", "second": "MP602"}
    assert result.trial is None
    assert applied.trial is None


def test_a_builders_limit_counts_for_its_target_only_and_the_plan_names_it(workshop):
    # A11: MP303 kept most of a model's arithmetic in FP32 for TensorRT's sake alone.
    text = """g (float[5,2,4] x, float[1,16,4] w, float[1,16,4] r, int32[2] n) => (float[5,1,2,4] y) {
        [rnn] y = LSTM<hidden_size = 4>(x, w, r, , n)
    }"""
    for target, expected in (("any", "fp32"), ("rtx", "fp32"), ("openvino", "fp16"), ("onnxruntime", "fp16")):
        plan = workshop.plan(text, target=target)
        (decision,) = plan.decisions
        assert (plan.target, decision.format.value) == (target, expected)
        assert decision.limit == ("rtx" if expected == "fp32" else "")
        assert ("TensorRT for RTX" in decision.reason) == (expected == "fp32")
    with pytest.raises(UsageError, match="the targets are any, tensorrt"):
        workshop.plan(text, target="npu")
