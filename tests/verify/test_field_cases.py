"""Faults that users of ONNX Runtime (O) and of verifiers (V) report, as tests; others stand where they are named.

V1 and V10: test_verify.py and test_gate.py.  V3: test_gate.py.  V4, V5, V7: test_blame.py.  V6: test_scores.py.
O3: tests/runtime/test_ort.py.
"""

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from mpdeploy import records
from mpdeploy.conversion.api import convert
from mpdeploy.graph import io
from mpdeploy.report.page import page
from mpdeploy.report.record import report_of
from mpdeploy.runtime.feeds import feeds_of
from mpdeploy.session.compared import ARITHMETIC, subject_in
from mpdeploy.verification.api import verify
from mpdeploy.verification.subject import emulated, opened

QUICK = {"noise": False}
SCRIPT = Path(__file__).parents[2] / "scripts" / "broken_conversions.py"
node = helper.make_node


def load_script():
    spec = importlib.util.spec_from_file_location("broken_conversions", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


SCRIPTED = load_script()
# Broken by a constant that leaves the format: that ONNX Runtime shows, too.
SEEN_BY_ALL = {"masked attention", "lost epsilon", "floor of a logarithm", "tiny weights"}


@pytest.mark.parametrize("case", SCRIPTED.BROKEN, ids=lambda case: case.name)
def test_o2_what_onnx_runtimes_cpu_hides_the_verifier_sees_and_says_how(case, tmp_path):
    reference, half = tmp_path / "ref.onnx", tmp_path / "half.onnx"
    onnx.save(case.model(), reference)
    onnx.save(SCRIPTED.naive_half(case.model()), half)
    feeds = feeds_of([case.feed()])
    hidden = verify(reference, subject_in(half, "onnxruntime"), feeds, **QUICK, force=True)
    assert hidden.verdict.passed == (case.name not in SEEN_BY_ALL)
    unforced = verify(reference, subject_in(half, "onnxruntime"), feeds, **QUICK)
    assert "V301" in [r.code for r in unforced.verdict.reasons]
    subject = emulated(half, ARITHMETIC[case.emulate]) if case.emulate else opened(half)
    seen = verify(reference, subject, feeds, noise=False, layers=True)
    assert not seen.verdict.passed
    assert seen.candidate_run.evidence
    assert ("after every 16 terms" if case.emulate else "in float32") in seen.candidate_run.precision
    assert seen.blame.culprits, "somebody is to blame"
    assert seen.blame.repair.passed


def test_o1_no_time_of_a_cpu_run_is_reported_as_a_result(mlp, samples):
    report = verify(mlp("ref"), mlp("cand", "fp16"), feeds_of([samples]), **QUICK)
    text = json.dumps(records.to_builtins(report)) + page(report_of(report))
    for word in ("latency", "throughput", "speedup", "faster", "slower"):
        assert word not in text.lower(), word
    timed = {field.name for field in dataclasses.fields(report)} & {"seconds", "milliseconds", "speed"}
    assert timed == {"seconds"}  # how long the comparison took


def blocks(write, count=12):
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for i in range(count):
        w = (rng.standard_normal((32, 32)) / np.sqrt(32)).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes += [
            node("MatMul", [value, f"w{i}"], [f"m{i}"], name=f"matmul{i}"),
            node("Relu", [f"m{i}"], [f"r{i}"], name=f"relu{i}"),
            node("Mul", [f"r{i}", f"r{i}"], [f"q{i}"], name=f"square{i}"),
            node("Tanh", [f"q{i}"], [f"t{i}"], name=f"tanh{i}"),
        ]
        value = f"t{i}"
    nodes[-1].output[0] = "y"
    return write("blocks", nodes, {"x": ["N", 32]}, {"y": ["N", 32]}, weights)


def casts_of(path):
    return [n for n in io.load(path).graph if n.op_type == "Cast"]


def test_o4_no_pair_of_casts_is_left_behind(write, tmp_path):
    source, target = blocks(write), tmp_path / "half.onnx"
    convert(source, target, precision="fp16", keep_fp32=("tanh*",))
    for cast in casts_of(target):
        before = cast.inputs[0].producer()
        assert before is None or before.op_type != "Cast", cast.name
        assert all(user.op_type != "Cast" for user, _ in cast.outputs[0].uses())


def test_o5_islands_are_merged_and_casts_are_counted(write, tmp_path):
    source, target = blocks(write), tmp_path / "half.onnx"
    result = convert(source, target, precision="fp16", keep_fp32=("square*",))
    assert result.casts == len(casts_of(target))
    assert result.bytes_cast > 0
    islands = 2 * 12  # one Cast into each pinned operator and one out of it would be the least
    assert result.casts <= islands + 2


def test_v2_relative_errors_stay_finite_where_the_reference_is_zero(write):
    ref = write("ref", [node("Relu", ["x"], ["y"])], {"x": ["N", 4]}, {"y": ["N", 4]})
    cand = write("cand", [node("LeakyRelu", ["x"], ["y"], alpha=1e-4)], {"x": ["N", 4]}, {"y": ["N", 4]})
    x = np.float32([[-1, -2, 3, 4], [-1, -1, -1, -1]])
    (output,) = verify(ref, cand, feeds_of([{"x": x}]), **QUICK).outputs
    assert output.reference_largest == 4
    assert 0 < output.norm_relative < 1e-3
    assert 0 < output.worst_sample_error < 1e-3  # a row of zeros is measured by the typical one


def test_v8_a_half_model_is_fed_halves_and_the_report_says_so(write, mlp, tmp_path):
    source, target = blocks(write, 2), tmp_path / "low_io.onnx"
    convert(source, target, precision="fp16", low_io=True)
    x = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    report = verify(source, target, feeds_of([{"x": x}]), noise=False, layers=True)
    assert report.verdict.passed
    assert "candidate: input 'x' was cast from float32 to float16, with rounding" in report.notes
    first = report.blame.layers[0]
    assert (first.value, first.format) == ("x", "fp16")
    assert 0 < first.error < 1e-3


def test_v9_outputs_are_measured_in_a_run_that_returns_nothing_else(case_a4, all_low, spread):
    subject = opened(all_low(case_a4))
    report = verify(case_a4, subject, feeds_of(spread[:2]), noise=False, layers=True)
    assert [spec.name for spec in subject.runner.outputs] == ["y"]
    (output,) = report.outputs
    inside = next(layer for layer in report.blame.layers if layer.value == "y")
    assert len(report.blame.layers) > 5
    assert inside.error == pytest.approx(output.norm_relative, rel=1e-3) or inside.error is output.norm_relative is None


@pytest.mark.parametrize("kind", ["zeros", "nan", "constant"])
def test_v11_zeros_nan_and_constants_never_pass(write, kind):
    nodes = {
        "zeros": [node("Sub", ["x", "x"], ["y"])],
        "nan": [node("Sub", ["x", "x"], ["z"]), node("Div", ["z", "z"], ["y"])],
        "constant": [node("Sub", ["x", "x"], ["z"]), node("Exp", ["z"], ["y"])],
    }[kind]
    ref = write("ref", [node("Tanh", ["x"], ["y"])], {"x": ["N", 4]}, {"y": ["N", 4]})
    cand = write(kind, nodes, {"x": ["N", 4]}, {"y": ["N", 4]})
    x = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)
    report = verify(ref, cand, feeds_of([{"x": x}]), "max_abs<=1e9", **QUICK)
    codes = [r.code for r in report.verdict.reasons]
    assert not report.verdict.passed
    assert {"zeros": "V104", "nan": "V101", "constant": "V104"}[kind] in codes
