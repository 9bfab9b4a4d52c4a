"""Search on real graphs: what is found is verified anew, from outside."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from mpdeploy import records
from mpdeploy.errors import ModelError, UsageError, VerificationFailed
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.searching.api import search
from mpdeploy.verification.api import verify

CHAIN = """g (float[4,16] x) => (float[4,16] y) {
    [first] a = MatMul(x, w0)  [soft] s = Softmax<axis = -1>(a)  [second] b = MatMul(s, w1)
    [exp] e = Exp(b)  [third] y = MatMul(e, w2)
}"""
# 300 x 300 is beyond FP16, and the product is small again at once.
SPIKE = """g (float[4,16] x) => (float[4,16] y) <float big = {300.0}, float tiny = {1.0e-5}> {
    [first] a = MatMul(x, w0)  [up] u = Mul(a, big)  [square] q = Mul(u, u)  [down] d = Mul(q, tiny)
    [second] b = MatMul(d, w1)  [third] y = MatMul(b, w2)
}"""


def plan_of(result):
    return records.load(PrecisionPlan, Path(result.conversion.plan))


def formats(result):
    return {d.node: d.format.value for d in plan_of(result).decisions}


def test_a_loose_budget_lowers_what_rules_keep(model, data, tmp_path):
    source = model(CHAIN)
    result = search(source, tmp_path / "out.onnx", precision="fp16", data=data, policy="autocast")
    assert result.steps[0].low == 3  # by its rules softmax and exp are FP32
    assert set(formats(result).values()) == {"fp16"}
    assert set(result.freed) == {"soft", "exp"}
    codes = {d.node: d.code for d in plan_of(result).decisions}
    assert codes["soft"] == codes["exp"] == "MP811"
    assert verify(source, result.conversion.model, data).verdict.passed


def test_a_tight_budget_is_met_with_as_much_low_as_it_allows(model, data, tmp_path):
    source = model(CHAIN)
    loose = search(source, tmp_path / "loose.onnx", precision="bf16", data=data)
    tight = f"norm_relative<={loose.found.error / 2:.3g}"
    result = search(source, tmp_path / "tight.onnx", precision="bf16", data=data, budget=tight)
    assert not result.steps[0].passed
    assert 0 < result.conversion.low_operators < loose.conversion.low_operators
    assert result.kept
    assert result.complete
    assert {d.code for d in plan_of(result).decisions if d.node in result.kept} == {"MP812"}
    assert verify(source, result.conversion.model, data, tight).verdict.passed
    # One more operator lowered breaks it: each was tried on top of the rest.
    broken = [step for step in result.steps if not step.passed]
    assert len(broken) >= len(result.kept)


def test_arithmetic_comes_before_what_only_moves_bytes(model, data, tmp_path):
    source = model(CHAIN)
    error = search(source, tmp_path / "a.onnx", precision="bf16", data=data).found.error
    result = search(
        source, tmp_path / "b.onnx", precision="bf16", data=data, budget=f"norm_relative<={error * 0.9:.3g}"
    )
    assert result.conversion.low_flops >= 2 / 3


def test_a_hard_reason_is_never_overruled(model, data, tmp_path):
    result = search(model(SPIKE), tmp_path / "out.onnx", precision="fp16", data=data, budget="norm_relative<=1e9")
    assert formats(result)["square"] == "fp32"  # measured beyond the range
    assert result.conversion.low_flops == 1


def test_even_rules_that_see_nothing_are_repaired(model, data, tmp_path):
    """Policy fast looks at no range: its plan overflows, and the drift along the graph says where."""
    result = search(model(SPIKE), tmp_path / "out.onnx", precision="fp16", data=data, policy="fast")
    assert result.steps[0].error is None
    assert formats(result)["square"] == "fp32"
    assert result.conversion.low_flops == 1
    assert verify(model(SPIKE), result.conversion.model, data).verdict.passed


def test_the_user_has_the_last_word(model, data, tmp_path):
    result = search(
        model(CHAIN), tmp_path / "out.onnx", precision="fp16", data=data, policy="autocast", keep_fp32=("soft",)
    )
    assert formats(result)["soft"] == "fp32"
    assert "exp" in result.freed


def test_no_plan_within_budget_writes_nothing(model, data, tmp_path):
    with pytest.raises(VerificationFailed, match="no plan with fp16 in it is within the budget"):
        search(model(CHAIN), tmp_path / "out.onnx", precision="fp16", data=data, budget="norm_relative<=1e-12")
    assert not list(tmp_path.glob("out*"))


def test_trials_are_limited_and_the_result_says_so(model, data, tmp_path):
    source = model(CHAIN)
    error = search(source, tmp_path / "a.onnx", precision="bf16", data=data).found.error
    budget = f"norm_relative<={error / 2:.3g}"
    result = search(source, tmp_path / "b.onnx", precision="bf16", data=data, budget=budget, trials=1)
    assert not result.complete
    assert verify(source, result.conversion.model, data, budget).verdict.passed


def test_the_same_question_gets_the_same_answer(model, data, tmp_path):
    for name in ("a.onnx", "b.onnx"):
        search(model(CHAIN), tmp_path / name, precision="fp16", data=data, policy="autocast")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert (tmp_path / "a.plan.json").read_bytes() == (tmp_path / "b.plan.json").read_bytes()


def test_its_plan_can_be_applied_again(model, data, tmp_path):
    from mpdeploy.conversion.api import convert

    source = model(CHAIN)
    result = search(source, tmp_path / "out.onnx", precision="fp16", data=data, policy="autocast")
    convert(source, tmp_path / "again.onnx", precision="fp16", plan=result.conversion.plan)
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "out.onnx").read_bytes()


def test_a_model_with_nothing_to_lower_is_told(model, tmp_path):
    source = model("g (int64[2] i) => (int64[2] y) { y = Add(i, i) }")
    np.savez(tmp_path / "feed.npz", i=np.arange(2))
    with pytest.raises(VerificationFailed, match="nothing can be low"):
        search(source, tmp_path / "out.onnx", precision="fp16", data=str(tmp_path / "feed.npz"))


@pytest.mark.parametrize(
    ("words", "match"),
    [({"trials": 0}, "at least one plan"), ({"precision": "int8"}, "precision"), ({"policy": "bold"}, "policy")],
)
def test_bad_arguments_are_refused(model, data, tmp_path, words, match):
    with pytest.raises(UsageError, match=match):
        search(model(CHAIN), tmp_path / "out.onnx", **({"precision": "fp16", "data": data} | words))


def test_a_converted_model_is_no_source(model, data, tmp_path):
    made = search(model(CHAIN), tmp_path / "out.onnx", precision="fp16", data=data).conversion.model
    with pytest.raises(UsageError, match="search on the FP32 model"):
        search(made, tmp_path / "twice.onnx", precision="bf16", data=data)


def test_data_may_be_a_path_or_arrays(model, data, tmp_path):
    source = model(CHAIN)
    arrays = [dict(np.load(path)) for path in sorted(Path(data).iterdir())]
    for given, name in ((Path(data), "a"), (arrays, "b"), (arrays[0], "c")):
        made = search(source, tmp_path / f"{name}.onnx", precision="fp16", data=given).conversion.model
        assert verify(source, made, given).verdict.passed
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_what_is_written_is_a_valid_model(model, data, tmp_path):
    result = search(model(CHAIN), tmp_path / "out.onnx", precision="fp16", data=data)
    onnx.checker.check_model(result.conversion.model, full_check=True)


def test_the_reference_runs_once_for_each_feed(model, data, tmp_path, monkeypatch):
    runs = []
    run = OrtRunner.run
    monkeypatch.setattr(OrtRunner, "run", lambda self, feed: runs.append(1) or run(self, feed))
    result = search(model(CHAIN), tmp_path / "out.onnx", precision="fp16", data=data, policy="autocast")
    measuring, reference, plans = 1, 1, len(result.steps)  # the emulator runs a plan in ONNX Runtime, too
    assert plans > 1
    assert len(runs) == len(list(Path(data).iterdir())) * (measuring + reference + plans)


def test_a_plan_that_cannot_be_carried_out_tells_the_cause(model, data, tmp_path):
    source = model("g (float[4,16] x) => (float[4,16] y) { a = MatMul(x, w0)  y = other.Unknown(a) }")
    with pytest.raises(ModelError, match="Unknown"):
        search(source, tmp_path / "out.onnx", precision="fp16", data=data)
