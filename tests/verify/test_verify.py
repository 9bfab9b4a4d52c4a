"""Whole comparisons of model files, and the verdicts on them."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpdeploy import records
from mpdeploy.errors import UsageError
from mpdeploy.graph import io
from mpdeploy.numerics.budget import parse_budget
from mpdeploy.numerics.drift import OutputDrift
from mpdeploy.runtime.compare import Comparison
from mpdeploy.runtime.feeds import feeds_of
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.verification.api import verify
from mpdeploy.verification.record import DriftReport
from mpdeploy.verification.verdict import judge

node = helper.make_node


def codes(report):
    return [reason.code for reason in report.verdict.reasons]


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_a_good_conversion_passes_with_the_defaults(mlp, samples, low):
    report = verify(mlp("ref"), mlp("cand", low), feeds_of([samples]))
    assert report.verdict.passed, report.verdict
    (logits,) = report.outputs
    assert 0 < logits.norm_relative < 0.02
    assert logits.accuracy_reference == pytest.approx(logits.accuracy_candidate, abs=0.02)
    assert report.candidate_run.runtime == "mpdeploy emulator"
    assert report.reference_run.runtime == "onnxruntime"
    assert report.data.samples == 100
    assert report.budget.origin == f"default for {low} classifiers"
    assert report.candidate.coarsest.value == low


def test_the_report_survives_json(mlp, samples, tmp_path):
    report = verify(mlp("ref"), mlp("cand", "fp16"), feeds_of([samples]))
    records.save(report, tmp_path / "r.json")
    assert records.load(DriftReport, tmp_path / "r.json") == report


def test_the_report_survives_json_when_everything_is_nan(write, tmp_path):
    ref = write("ref", [node("Identity", ["x"], ["y"])], {"x": [2]}, {"y": [2]})
    bad = write("bad", [node("Sqrt", ["x"], ["y"])], {"x": [2]}, {"y": [2]})
    report = verify(ref, bad, feeds_of([{"x": np.float32([-1, -2])}]))
    records.save(report, tmp_path / "r.json")
    assert records.load(DriftReport, tmp_path / "r.json") == report
    assert codes(report)[0] == "V101"


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (np.zeros_like, "V104"),
        (lambda w: w * np.float32(0.9), "V201"),
        (lambda w: w + np.nan, "V101"),
        (lambda w: w * np.float32(1e9), "V101"),  # beyond FP16
    ],
)
def test_a_broken_conversion_fails(mlp, samples, spoil, code):
    report = verify(mlp("ref"), mlp("cand", "fp16", spoil), feeds_of([samples]))
    assert not report.verdict.passed
    assert code in codes(report)
    assert report.verdict.headline


def test_one_overflowing_sample_among_many_feeds_is_caught(write):
    """A4: a LayerNorm of primitive operators; only the last of the samples has a large spread."""

    def layer_norm(name, low):
        x = ["x_low"] if low else ["x"]
        kind = np.float16 if low else np.float32
        nodes = [node("Cast", ["x"], ["x_low"], to=TensorProto.FLOAT16)] if low else []
        nodes += [
            node("ReduceMean", x, ["mean"], axes=[-1]),
            node("Sub", [*x, "mean"], ["d"]),
            node("Pow", ["d", "two"], ["d2"]),
            node("ReduceMean", ["d2"], ["var"], axes=[-1]),
            node("Add", ["var", "eps"], ["ve"]),
            node("Sqrt", ["ve"], ["sd"]),
            node("Div", ["d", "sd"], ["q"]),
            node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
        ]
        constants = [numpy_helper.from_array(kind(v), n) for n, v in (("two", 2), ("eps", 1e-5))]
        return write(name, nodes, {"x": ["N", 64]}, {"y": ["N", 64]}, constants)

    rng = np.random.default_rng(0)
    scales = [1.0, 3.0, 600.0]
    feeds = feeds_of([{"x": (rng.standard_normal((1, 64)) * s).astype(np.float32)} for s in scales])
    reference, candidate = layer_norm("ref", low=False), layer_norm("cand", low=True)
    report = verify(reference, candidate, feeds)
    assert not report.verdict.passed
    assert report.outputs[0].worst_samples[0].sample == "arrays #2"
    # What ONNX Runtime makes of the same file on the same data: nothing wrong at all.
    x = list(feeds)[2]
    hidden = OrtRunner(io.load(candidate), "cand").run(x)["y"]
    np.testing.assert_allclose(hidden, OrtRunner(io.load(reference), "ref").run(x)["y"], atol=0.02)


def test_a_reference_with_exact_zeros_gives_finite_errors(write):
    ref = write("ref", [node("Relu", ["x"], ["y"])], {"x": ["N"]}, {"y": ["N"]})
    cast = [
        node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        node("Relu", ["h"], ["r"]),
        node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    cand = write("cand", cast, {"x": ["N"]}, {"y": ["N"]})
    report = verify(ref, cand, feeds_of([{"x": np.float32([-1, 0, 0.1, 2])}]))
    assert report.verdict.passed
    assert 0 < report.outputs[0].norm_relative < 1e-3
    assert 0 <= report.outputs[0].worst_sample_error < 1e-3


def test_a_candidate_with_half_inputs_and_outputs_is_fed_right(write):
    ref = write("ref", [node("Mul", ["x", "x"], ["y"])], {"x": ["N"]}, {"y": ["N"]})
    half = {"x": TensorProto.FLOAT16, "y": TensorProto.FLOAT16}
    cand = write("cand", [node("Mul", ["x", "x"], ["y"])], {"x": ["N"]}, {"y": ["N"]}, kinds=half)
    report = verify(ref, cand, feeds_of([{"x": np.float32([0.1, 1.7, -3])}]))
    assert report.verdict.passed
    assert any("candidate: input 'x' was cast from float32 to float16" in note for note in report.notes)


def test_integer_outputs_must_match(write):
    def model(name, op):
        return write(
            name, [node(op, ["x"], ["y"], axis=1)], {"x": ["N", 3]}, {"y": ["N", 1]}, kinds={"y": TensorProto.INT64}
        )

    feeds = feeds_of([{"x": np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)}])
    assert verify(model("a", "ArgMax"), model("b", "ArgMax"), feeds).verdict.passed
    report = verify(model("a", "ArgMax"), model("c", "ArgMin"), feeds)
    assert codes(report) == ["V201"]
    assert "match of output 'y'" in report.verdict.headline


def test_outputs_are_paired_and_differences_told(write):
    two = {"y": ["N"], "z": ["N"]}
    nodes = [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["z"])]
    ref = write("ref", nodes, {"x": ["N"]}, two)
    one = write("one", nodes[:1], {"x": ["N"]}, {"y": ["N"]})
    renamed = write(
        "renamed", [node("Relu", ["x"], ["a"]), node("Neg", ["x"], ["b"])], {"x": ["N"]}, {"a": ["N"], "b": ["N"]}
    )
    reshaped = write(
        "reshaped", [*nodes[1:], node("Concat", ["x", "x"], ["y"], axis=0)], {"x": ["N"]}, {"y": [None], "z": ["N"]}
    )
    feeds = feeds_of([{"x": np.float32([-1, 2])}])
    assert codes(verify(ref, one, feeds)) == ["V107"]
    by_position = verify(ref, renamed, feeds)
    assert by_position.verdict.passed
    assert any("paired by position" in note for note in by_position.notes)
    assert "V106" in codes(verify(ref, reshaped, feeds))


def test_a_users_budget_replaces_the_defaults(mlp, samples):
    ref, cand = mlp("ref"), mlp("cand", "bf16")
    feeds = feeds_of([samples])
    assert not verify(ref, cand, feeds, parse_budget("max_abs<=1e-9")).verdict.passed
    assert verify(ref, cand, feeds, parse_budget("logits:cosine>=0.9")).verdict.passed
    with pytest.raises(UsageError, match="they share logits"):
        verify(ref, cand, feeds, parse_budget("nonsense:cosine>=0.9"))


def test_a_limit_that_nothing_can_be_held_to_fails(mlp, samples):
    del samples["labels"]
    report = verify(mlp("ref"), mlp("cand", "fp16"), feeds_of([samples]), parse_budget("accuracy_drop<=0.01"))
    assert codes(report) == ["V202"]


def test_no_budget_excuses_nan_or_collapse(mlp, samples):
    everything = parse_budget("max_abs<=inf")
    for spoil in (np.zeros_like, lambda w: w + np.nan):
        report = verify(mlp("ref"), mlp("cand", "fp16", spoil), feeds_of([samples]), everything)
        assert not report.verdict.passed


def test_bad_labels_are_refused(mlp, samples):
    for labels in (np.arange(3), np.full(100, 0.5, np.float32)):
        with pytest.raises(UsageError, match="labels"):
            verify(mlp("ref"), mlp("cand", "fp16"), feeds_of([{**samples, "labels": labels}]))


def test_a_run_that_is_no_evidence_cannot_pass(mlp, samples):
    model = io.load(mlp("cand", "fp16"))
    execution = OrtRunner(model, "cand").describe()
    perfect = OutputDrift("y", False, 1, 4, 1.0, cosine=1.0, norm_relative=0.0)
    verdict = judge(Comparison((perfect,), (), 1, 1, ()), parse_budget("cosine>=0.9"), execution)
    assert [r.code for r in verdict.reasons] == ["V301"]


def test_a_half_reference_is_told(mlp, samples):
    report = verify(mlp("ref", "fp16"), mlp("cand", "bf16"), feeds_of([samples]))
    assert any("no FP32 baseline" in note for note in report.notes)


def test_empty_outputs_pass_only_beside_others(write):
    kinds = {"i": TensorProto.INT64}
    nodes = [node("NonZero", ["x"], ["i"])]
    empty = write("empty", nodes, {"x": ["N"]}, {"i": [1, None]}, kinds=kinds)
    feeds = feeds_of([{"x": np.zeros(3, np.float32)}])
    assert codes(verify(empty, empty, feeds)) == ["V108"]
    both = write("both", [*nodes, node("Exp", ["x"], ["y"])], {"x": ["N"]}, {"i": [1, None], "y": ["N"]}, kinds=kinds)
    report = verify(both, both, feeds)
    assert report.verdict.passed
    assert any("'i' was empty" in note for note in report.notes)
