"""Drift along the graph, who is to blame, and a list of nodes that repairs it."""

import dataclasses

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpdeploy import records
from mpdeploy.conversion.api import convert
from mpdeploy.runtime.feeds import feeds_of
from mpdeploy.verification.api import verify
from mpdeploy.verification.blame import Kind
from mpdeploy.verification.record import DriftReport

node = helper.make_node
LAYERS = {"noise": False, "layers": True}


@pytest.fixture
def report(case_a4, all_low, spread):
    return verify(case_a4, all_low(case_a4), feeds_of(spread), **LAYERS)


def test_the_first_overflow_is_named_with_its_fp32_magnitude(report, spread):
    """V4."""
    blame = report.blame
    assert not report.verdict.passed
    assert blame.first_broken == "d2"
    first, second = (c for c in blame.culprits if c.kind is Kind.OVERFLOW)
    x = spread[2]["x"].astype(np.float64)
    assert (first.node, first.op, first.value) == ("pow", "Pow", "d2")
    assert first.largest == pytest.approx(((x - x.mean()) ** 2).max(), rel=1e-5)
    assert f"{first.largest:.4g}" in first.text
    assert "65504" in first.text
    assert "arrays #2" in first.text
    assert second.node in ("matmul", "l2")  # in series: the second is found although the first is before it


def test_the_repair_is_a_list_of_node_names_that_convert_takes(report, case_a4, spread, tmp_path):
    """V5."""
    repair = report.blame.repair
    assert repair.passed
    assert set(repair.nodes) <= {"mean", "sub", "pow", "var", "add", "sqrt", "div", "matmul", "l2", "normal"}
    assert "--keep-fp32 pow" in repair.command
    again = tmp_path / "again.onnx"
    result = convert(case_a4, again, precision="fp16", keep_fp32=repair.nodes)
    assert (result.low_operators, result.operators) == (repair.low, repair.operators)
    assert verify(case_a4, again, feeds_of(spread)).verdict.passed


def test_layers_tell_values_casts_sources_and_readers(report):
    layers = {layer.partner: layer for layer in report.blame.layers}
    d2 = layers["d2"]
    assert (d2.value, d2.node, d2.op, d2.format) == ("d2", "pow", "Pow", "fp16")
    assert (d2.broken > 0, d2.sample, d2.error, d2.sources, d2.readers) == (True, "arrays #2", None, ("d",), ("var",))
    assert layers["d"].error < 1e-3
    narrowed = [layer for layer in report.blame.layers if layer.narrowed]
    assert [layer.value for layer in narrowed] == ["x"]
    assert report.blame.unpaired == report.blame.hidden == 0


def test_the_report_with_blame_survives_json(report, tmp_path):
    records.save(report, tmp_path / "r.json")
    assert records.load(DriftReport, tmp_path / "r.json") == report


def test_the_plans_reason_stands_beside_the_node(case_a4, spread, tmp_path):
    target = tmp_path / "kept.onnx"
    convert(case_a4, target, precision="fp16", keep_fp32=("pow",))
    report = verify(case_a4, target, feeds_of(spread[:1]), "norm_relative<=1e-12", **LAYERS)
    reasons = {c.node: c.code for c in report.blame.culprits}
    assert all(code.startswith("MP") for code in reasons.values())


def test_a_good_candidate_has_layers_and_needs_no_repair(mlp, samples):
    report = verify(mlp("ref"), mlp("cand", "fp16"), feeds_of([samples]), **LAYERS)
    assert report.verdict.passed
    assert report.blame.repair is None
    assert report.blame.first_broken == ""
    errors = {layer.value: layer.error for layer in report.blame.layers}
    assert 0 < errors["m0"] < errors["logits"] < 0.02
    assert {c.kind for c in report.blame.culprits} == {Kind.DRIFT}


def test_a_lost_epsilon_is_traced_to_what_vanished(write, all_low):
    """B1: x / (x + 1e-12) at 0."""
    nodes = [
        node("Add", ["x", "eps"], ["s"], name="add"),
        node("Div", ["one", "s"], ["r"], name="div"),
        node("Mul", ["r", "x"], ["y"], name="mul"),
    ]
    constants = [numpy_helper.from_array(np.float32(v), k) for k, v in {"eps": 1e-12, "one": 1}.items()]
    source = write("b1", nodes, {"x": ["N"]}, {"y": ["N"]}, constants)
    report = verify(source, all_low(source), feeds_of([{"x": np.float32([0, 1, 2])}]), **LAYERS)
    first = report.blame.culprits[0]
    assert first.node == "div"
    assert report.blame.repair.passed
    assert "div" in report.blame.repair.nodes


def test_cancellation_is_repaired_upstream(write, all_low):
    """Two large numbers that nearly cancel: the rounding of both is what must go."""
    nodes = [
        node("Mul", ["x", "k"], ["a"], name="scale"),
        node("Add", ["a", "big"], ["b"], name="lift"),
        node("Sub", ["b", "big"], ["y"], name="cancel"),
    ]
    constants = [numpy_helper.from_array(np.float32(v), k) for k, v in {"k": 0.5, "big": 1000}.items()]
    source = write("cancel", nodes, {"x": ["N"]}, {"y": ["N"]}, constants)
    x = np.random.default_rng(0).standard_normal(200).astype(np.float32)
    report = verify(source, all_low(source), feeds_of([{"x": x}]), **LAYERS)
    assert not report.verdict.passed
    assert report.blame.culprits[0].node in ("cancel", "lift")
    assert report.blame.repair.passed
    assert "lift" in report.blame.repair.nodes


def test_a_wrong_decision_is_traced(write, all_low):
    """C4: ids that pass through float pick the neighbouring row."""
    nodes = [
        node("Cast", ["ids"], ["f"], name="widen", to=TensorProto.FLOAT),
        node("Add", ["f", "one"], ["g"], name="next"),
        node("Cast", ["g"], ["i"], name="narrow", to=TensorProto.INT64),
        node("Gather", ["table", "i"], ["y"], name="pick"),
    ]
    table = np.random.default_rng(0).standard_normal((4100, 2)).astype(np.float32)
    constants = [numpy_helper.from_array(np.float32(1), "one"), numpy_helper.from_array(table, "table")]
    source = write("c4", nodes, {"ids": ["N"]}, {"y": ["N", 2]}, constants, kinds={"ids": TensorProto.INT64})
    report = verify(source, all_low(source), feeds_of([{"ids": np.int64([10, 2048, 4001])}]), **LAYERS)
    decided = [c for c in report.blame.culprits if c.kind is Kind.DECIDED]
    assert [c.value for c in decided] == ["i"]
    assert report.blame.repair.passed


def test_a_model_that_another_tool_renamed_is_followed(case_a4, all_low, spread, tmp_path):
    """No plan lies beside it and inner names are foreign: structure tells, the repair starts from the defaults."""
    import onnx

    foreign = onnx.load(all_low(case_a4))
    fixed = {i.name for i in foreign.graph.initializer} | {"x", "y"}
    for n in foreign.graph.node:
        n.name = f"tool_{n.name}"
        n.input[:] = [i if i in fixed else f"tool_{i}" for i in n.input]
        n.output[:] = [o if o in fixed else f"tool_{o}" for o in n.output]
    del foreign.graph.value_info[:]
    path = tmp_path / "foreign" / "model.onnx"
    path.parent.mkdir()
    onnx.save(foreign, path)
    report = verify(case_a4, path, feeds_of(spread), **LAYERS)
    assert report.blame.unpaired == 0
    assert report.blame.culprits[0].node == "pow"
    assert report.blame.culprits[0].code == ""
    assert report.blame.repair.passed


def test_noise_of_a_model_that_is_never_twice_the_same(write):
    """V7: the FP32 run itself differs run to run by 1e-3; the floor is measured and no conversion is blamed for it."""
    nodes = [
        node("RandomNormalLike", ["x"], ["r"], scale=1e-3),
        node("Add", ["x", "r"], ["y"]),
    ]
    source = write("noisy", nodes, {"x": ["N"]}, {"y": ["N"]})
    feeds = feeds_of([{"x": np.random.default_rng(0).standard_normal(1000).astype(np.float32)}])
    report = verify(source, source, feeds, "norm_relative<=1e-4")
    own = {n.way: n.norm_relative for n in report.noise}
    assert set(own) == {"run again", "in one thread", "with operators not fused"}
    assert own["run again"] == pytest.approx(1.4e-3, rel=0.2)
    assert [r.code for r in report.verdict.reasons] == ["V201", "V203"]
    assert "no candidate can hold norm_relative<=0.0001" in report.verdict.reasons[1].text


def test_noise_of_a_sound_model_is_far_below_its_budget(mlp, samples):
    report = verify(mlp("ref"), mlp("cand", "fp16"), feeds_of([samples]))
    assert report.noise
    assert all(n.norm_relative < 1e-5 and n.cosine > 0.999999 for n in report.noise)
    assert "V203" not in [r.code for r in report.verdict.reasons]


def test_a_witness_counts_as_noise(mlp, samples):
    from mpdeploy.graph import io
    from mpdeploy.runtime.ort import OrtRunner

    other = OrtRunner(io.load(mlp("other", None, lambda w: w * np.float32(1.01))), "other")
    report = verify(mlp("ref"), mlp("cand", "fp16"), feeds_of([samples]), witnesses={"in torch": other})
    (told,) = (n for n in report.noise if n.way == "in torch")
    assert told.norm_relative == pytest.approx(0.01, rel=0.3)


def test_noise_looks_at_few_feeds_only(mlp, samples):
    seen = []

    def feeds():
        for i in range(20):
            seen.append(i)
            yield {"x": samples["x"][i : i + 1]}

    class Source:
        def __iter__(self):
            return feeds()

    report = verify(mlp("ref"), mlp("cand", "fp16"), feeds_of(Source()))
    assert report.data.feeds == 20
    assert max(seen) == 19
    assert len(seen) <= 20 + 3 * 5
    assert dataclasses.asdict(report)["noise"]
