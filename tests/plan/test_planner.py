"""Decisions and their reasons on graphs of a few nodes."""

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from mpdeploy import records
from mpdeploy.conversion.api import convert
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.explain import decisions_about, differences, reasons

# Between two matrix products low precision is the cheapest, unless something forbids it.
FRAME = "g (float[2,4] x, float[4,4] w) => (float[2,4] y) { a = MatMul(x, w)  STEP  y = MatMul(s, w) }"
SQUARE = FRAME.replace("STEP", "s = Mul(a, a)")
SOFT = FRAME.replace("STEP", "s = Softmax<axis = -1>(a)")
EXP = FRAME.replace("STEP", "s = Exp(a)")
EYE = np.eye(4, dtype=np.float32)


def codes(plan):
    return {d.op: (d.format.value, d.code) for d in plan.decisions}


def test_heavy_operators_run_low(workshop):
    assert codes(workshop.plan(SOFT))["MatMul"] == ("fp16", "MP001")
    assert codes(workshop.plan(SOFT, "bf16"))["MatMul"] == ("bf16", "MP001")


def test_safe_keeps_softmax_and_balanced_measures(workshop):
    assert codes(workshop.plan(SOFT))["Softmax"] == ("fp32", "MP501")
    feed = workshop.feed(x=np.ones((2, 4), np.float32), w=EYE)
    assert codes(workshop.plan(SOFT, data=feed))["Softmax"] == ("fp16", "MP002")


def test_a_policy_can_be_named(workshop):
    feed = workshop.feed(x=np.ones((2, 4), np.float32), w=EYE)
    assert codes(workshop.plan(SOFT, data=feed, policy="autocast"))["Softmax"] == ("fp32", "MP501")
    assert codes(workshop.plan(SOFT, policy="fast"))["Softmax"] == ("fp16", "MP002")
    assert codes(workshop.plan(EXP, policy="fast"))["Exp"] == ("fp16", "MP002")


def test_a_scalar_that_two_operators_share_does_not_keep_the_second_one_fp32(workshop):
    # Attention with a boolean mask as torch exports it: the mask is FP32, and 0 stands in it and in the NaN guard.
    plan = workshop.plan("""g (float[2,4] x, float[4,4] w, bool[2,4] m) => (float[2,4] y)
        <float zero = {0}, float far = {-3.4e38}> {
            a = MatMul(x, w)  mask = Where(m, zero, far)  masked = Add(a, mask)  p = Softmax(masked)
            nan = IsNaN(p)  guarded = Where(nan, zero, p)  y = MatMul(guarded, w)
    }""")
    formats = {d.values[0]: d.format.value for d in plan.decisions if d.op == "Where"}
    assert formats == {"mask": "fp32", "guarded": "fp16"}


def test_numbers_that_nobody_computes_are_no_decision(workshop):
    # The scales of a Resize are float32 by its type rules, in whatever format it computes.
    text = """g (float[1,2,4,4] x, float[2,2,1,1] w) => (float[1,2,8,8] y)
        <float[4] scales = {1, 1, 2, 2}, float[0] roi = {}> {
        a = Conv(x, w)  y = Resize<mode = "nearest">(a, roi, scales) }"""
    plan = workshop.plan(text, opset=11)
    assert [d.op for d in plan.decisions] == ["Conv", "Resize"]
    computed = text.replace(
        "<float[4] scales = {1, 1, 2, 2}, float[0] roi = {}> {",
        """<float[4] one = {1, 1, 2, 2}, float[0] roi = {}> {
        scales = Abs(one)""",
    )
    plan = workshop.plan(computed, opset=11)
    assert any(d.reason.endswith("Resize takes no FLOAT16 as its scales at opset 11") for d in plan.decisions)


def test_what_no_builder_builds_stays_fp32_whatever_the_policy(workshop):
    mish = FRAME.replace("STEP", "s = Mish(a)")
    assert codes(workshop.plan(mish, "bf16", opset=22, policy="fast"))["Mish"] == ("fp32", "MP303")
    assert codes(workshop.plan(mish, "fp16", opset=22, policy="fast"))["Mish"][0] == "fp16"


def test_low_inputs_raise_the_opset_to_where_a_cast_takes_them(workshop):
    shrink = "g (float[2,4] x) => (float[2,4] y) { y = Shrink(x) }"
    assert workshop.plan(shrink, "bf16", opset=9, low_io=True).opset == 13
    assert workshop.plan(shrink, "bf16", opset=9).opset == 9
    assert workshop.plan(shrink, "fp16", opset=9, low_io=True).opset == 9


def test_low_inputs_of_a_model_that_cannot_be_raised_are_refused(workshop):
    text = "g (float[2,4] x) => (float[2,4] y) { y = Hardmax<axis = 0>(x) }"
    with pytest.raises(ModelError, match="cannot be raised to opset 13: Hardmax"):
        workshop.plan(text, "bf16", opset=9, low_io=True)


def test_balanced_needs_data(workshop):
    with pytest.raises(UsageError, match="balanced"):
        workshop.plan(SOFT, policy="balanced")


def test_the_measured_range_decides_and_is_told(workshop):
    small, large = (np.full((2, 4), v, np.float32) for v in (20, 400))
    assert codes(workshop.plan(SQUARE, data=workshop.feed(x=small, w=EYE)))["Mul"][0] == "fp16"
    plan = workshop.plan(SQUARE, data=workshop.feed(x=large, w=EYE))
    (decision,) = decisions_about(plan, "s")
    assert (decision.format, decision.code) == (Format.FP32, "MP101")
    assert "|x| reaches 1.6e+05 in sample 0, fp16 holds 65504 (margin 2)" in decision.reason
    assert codes(workshop.plan(SQUARE, "bf16", data=workshop.feed(x=large, w=EYE)))["Mul"][0] == "bf16"


def test_every_sample_counts(workshop, tmp_path):
    folder = tmp_path / "feeds"
    folder.mkdir()
    for i, size in enumerate((1, 2, 400)):
        np.savez(folder / f"{i}.npz", x=np.full((2, 4), size, np.float32), w=EYE)
    plan = workshop.plan(SQUARE, data=str(folder))
    (decision,) = decisions_about(plan, "s")
    assert "in sample 2" in decision.reason
    assert plan.data.samples == 3


def test_an_unproved_exponential_is_fp32_and_a_bounded_one_is_not(workshop):
    assert codes(workshop.plan(EXP))["Exp"][0] == "fp32"
    assert codes(workshop.plan(EXP.replace("s = Exp(a)", "t = Tanh(a)  s = Exp(t)")))["Exp"][0] == "fp16"


def test_the_user_keeps_nodes_and_operators(workshop):
    text = SOFT.replace("a = MatMul", "[mm1] a = MatMul").replace("y = MatMul", "[mm2] y = MatMul")
    assert codes(workshop.plan(text, keep_fp32=("m*2",)))["MatMul"] == ("fp32", "MP601")
    assert codes(workshop.plan(text, op_fp32=("MatMul",)))["MatMul"] == ("fp32", "MP601")
    with pytest.raises(UsageError, match="matches"):
        workshop.plan(text, keep_fp32=("no-such-node",))


def test_low_io_changes_the_declared_types(workshop):
    plan = workshop.plan(SOFT, policy="fast", low_io=True)
    kinds = [v.type.tensor_type.elem_type for v in (*workshop.made.graph.input, *workshop.made.graph.output)]
    assert kinds == [10, 10, 10]
    assert plan.low_io
    assert not any(n.op_type == "Cast" for n in workshop.made.graph.node)


def test_a_plan_gives_the_same_bytes(workshop):
    workshop.plan(SOFT)
    first = (workshop.folder / "made.onnx").read_bytes()
    convert(
        workshop.folder / "source.onnx",
        workshop.folder / "again.onnx",
        precision="fp16",
        plan=workshop.folder / "made.plan.json",
    )
    assert (workshop.folder / "again.onnx").read_bytes() == first
    assert (workshop.folder / "again.plan.json").read_bytes() == (workshop.folder / "made.plan.json").read_bytes()


def edited(workshop, old, new):
    path = workshop.folder / "edited.json"
    path.write_text((workshop.folder / "made.plan.json").read_text().replace(old, new))
    return convert(workshop.folder / "source.onnx", workshop.folder / "edited.onnx", precision="fp16", plan=path)


def test_an_edited_plan_is_obeyed(workshop):
    workshop.plan(SOFT)
    result = edited(workshop, '"format": "fp16"', '"format": "fp32"')
    assert (result.low_operators, result.casts, result.low_flops) == (0, 0, 0.0)


def test_an_impossible_plan_is_refused_with_the_node(workshop):
    einsum = 'g (float[2,4] x, float[4,4] w) => (float[2,4] y) { [product] y = Einsum<equation = "ij,jk->ik">(x, w) }'
    workshop.plan(einsum, "bf16")
    path = workshop.folder / "made.plan.json"
    path.write_text(path.read_text().replace('"format": "fp32"', '"format": "bf16"'))
    with pytest.raises(ModelError, match="product"):
        convert(workshop.folder / "source.onnx", workshop.folder / "out.onnx", precision="bf16", plan=path)
    assert not (workshop.folder / "out.onnx").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"format": "fp16"', '"format": "int8"', "not a valid PrecisionPlan"),
        ('"format": "fp16"', '"format": "bf16"', "cannot be bf16"),
        ("mpdeploy.plan/1", "mpdeploy.plan/99", "schema"),
        ('"node": "', '"node": "x', "does not say"),
    ],
)
def test_a_damaged_plan_is_refused(workshop, old, new, words):
    workshop.plan(SOFT)
    with pytest.raises(UsageError, match=words):
        edited(workshop, old, new)


def test_a_plan_for_another_model_or_format_is_refused(workshop):
    workshop.plan(SOFT)
    plan = workshop.folder / "made.plan.json"
    with pytest.raises(UsageError, match=r"fp16, not bf16"):
        convert(workshop.folder / "source.onnx", workshop.folder / "o.onnx", precision="bf16", plan=plan)
    workshop.source(SQUARE)
    with pytest.raises(UsageError, match="another model"):
        convert(workshop.folder / "source.onnx", workshop.folder / "o.onnx", precision="fp16", plan=plan)


def test_two_plans_are_compared(workshop):
    safe, fast = workshop.plan(SOFT), workshop.plan(SOFT, policy="fast")
    (found,) = differences(safe, fast)
    assert (found.first.op, found.first.format, found.second.format) == ("Softmax", Format.FP32, Format.FP16)
    assert differences(safe, safe) == ()


def test_reasons_are_counted_fp32_first(workshop):
    rows = reasons(workshop.plan(SOFT))
    assert [(r.format.value, r.code, r.count) for r in rows] == [("fp32", "MP501", 1), ("fp16", "MP001", 2)]


def test_the_plan_survives_a_round_trip(workshop):
    plan = workshop.plan(SOFT)
    assert records.from_json(type(plan), records.to_json(plan), "here") == plan


def test_the_ledger_names_what_weights_lost(workshop):
    numbers = "1e-9, -1e-9, 1e-6, 1.0"
    weights = f"w = Constant<value = float[4,1] {{{numbers}}}>()"
    text = f"g (float[1,4] x) => (float[1,1] y) {{ {weights}  [mm] y = MatMul(x, w) }}"
    (row,) = workshop.plan(text).weights
    assert row.consumers == ("mm",)
    assert (row.loss.vanished, row.loss.negative_vanished, row.loss.subnormal, row.loss.overflowed) == (2, 1, 1, 0)
    assert row.loss.worst_relative == 1.0


def test_the_same_source_gives_the_same_plan(workshop):
    assert records.to_json(workshop.plan(SOFT)) == records.to_json(workshop.plan(SOFT))


def test_an_input_with_a_default_becomes_low_with_its_default(workshop):
    source = workshop.folder / "source.onnx"
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2,4] x, float[4,4] w) => (float[2,4] y) { y = MatMul(x, w) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(EYE, "w"))
    onnx.save(model, source)
    made = workshop.folder / "made.onnx"
    convert(source, made, precision="fp16", low_io=True)
    default, declared = onnx.load(made).graph.initializer[0], onnx.load(made).graph.input[1]
    assert default.data_type == declared.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    np.testing.assert_array_equal(numpy_helper.to_array(default), EYE)
