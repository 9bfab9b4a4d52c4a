"""Runtimes load models in a process of their own, which may die of them."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from mpdeploy import memory
from mpdeploy.conversion.api import convert
from mpdeploy.graph import io
from mpdeploy.runtime.loadable import ONNXRUNTIME, Answer, Question, Refusal, _Loader, refusals
from mpdeploy.verification.api import verify

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'


def saved(path, nodes, kind="float"):
    model = onnx.parser.parse_model(f"{HEAD} g ({kind}[4,8] x) => ({kind}[4,4] y) {{ {nodes} }}")
    weight = np.ones((8, 4), np.float32 if kind == "float" else np.float16)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, path)
    return path


class Deadly:
    """Kills the process that receives it, as some models kill a runtime."""

    def __reduce__(self):
        return os.abort, ()


def test_a_runtime_that_dies_takes_nothing_with_it_and_is_asked_again(tmp_path):
    path = saved(tmp_path / "model.onnx", "y = MatMul(x, w)", "float16")
    loader = _Loader()
    try:
        died = loader.ask(Question(Deadly(), ONNXRUNTIME))
        assert isinstance(died, Refusal)
        assert (died.crashed, "SIGABRT" in str(died)) == (True, True)
        assert loader.ask(Question(str(path), ONNXRUNTIME)) == Answer()
    finally:
        loader._end()


@pytest.mark.parametrize("target", ["any", "onnxruntime", "openvino", "rtx"])
def test_a_sound_model_is_loaded_by_each_runtime(target, tmp_path):
    path = saved(tmp_path / "model.onnx", "y = MatMul(x, w)", "float16")
    assert refusals(io.load(path), path, target) == ()


def test_what_a_runtime_refuses_is_said_in_its_words(tmp_path):
    path = saved(tmp_path / "model.onnx", "m = MatMul(x, w)  y = Nonsense(m)")
    told = {t: refusals(_loaded_loosely(path), path, t) for t in ("any", "onnxruntime", "openvino", "rtx")}
    assert all("Nonsense" in str(refusal) for found in told.values() for refusal in found)
    assert all(told.values())


def _loaded_loosely(path: Path):
    import onnx_ir as ir

    return ir.load(path)


def test_a_missing_kernel_counts_where_no_other_runtime_knows_the_operators(tmp_path):
    """A26: com.microsoft operators run in ONNX Runtime only, which has no BF16 kernels on the CPU."""
    plain = saved(tmp_path / "plain.onnx", "y = MatMul(x, w)")
    bound = saved(tmp_path / "bound.onnx", "m = MatMul(x, w)  y = com.microsoft.QuickGelu(m)")
    notes = {s: convert(s, tmp_path / "low.onnx", precision="bf16").notes for s in (plain, bound)}
    assert notes[plain] == ()
    assert any("ONNX Runtime does not load" in note for note in notes[bound])
    low = tmp_path / "low.onnx"
    convert(plain, low, precision="bf16")
    assert [r.lacks_kernel for r in refusals(io.load(low), low, "onnxruntime")] == [True]


def test_verify_tells_of_a_model_that_it_emulates_and_no_runtime_loads(tmp_path):
    plain, low = saved(tmp_path / "plain.onnx", "y = MatMul(x, w)"), tmp_path / "low.onnx"
    bound = saved(tmp_path / "bound.onnx", "m = MatMul(x, w)  y = com.microsoft.QuickGelu(m)")
    data = {"x": np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)}
    notes = {}
    for source in (plain, bound):
        convert(source, low, precision="bf16")
        report = verify(source, low, [data], noise=False)
        assert report.verdict.passed
        notes[source] = [note for note in report.notes if "does not load" in note]
    assert notes[plain] == []
    assert len(notes[bound]) == 1


def test_a_model_that_stayed_the_same_is_not_loaded_again(tmp_path, monkeypatch):
    asked = []
    ask = _Loader.ask
    monkeypatch.setattr(_Loader, "ask", lambda self, question: asked.append(question) or ask(self, question))
    path = saved(tmp_path / "model.onnx", "y = MatMul(x, w)", "float16")
    for _ in range(2):
        assert refusals(io.load(path), path, "onnxruntime") == ()
    assert len(asked) == 1
    saved(path, "m = MatMul(x, w)  y = Relu(m)", "float16")
    assert refusals(io.load(path), path, "onnxruntime") == ()
    assert len(asked) == 2


def test_a_plan_for_a_target_that_nobody_knows_is_no_plan(tmp_path):
    plain, low = saved(tmp_path / "plain.onnx", "y = MatMul(x, w)"), tmp_path / "low.onnx"
    convert(plain, low, precision="bf16")
    beside = tmp_path / "low.plan.json"
    beside.write_text(beside.read_text().replace('"target": "any"', '"target": "coreml"'))
    report = verify(plain, low, [{"x": np.ones((4, 8), np.float32)}], noise=False)
    assert report.passed
    assert any("low.plan.json is no plan that this version reads" in note for note in report.notes)


def test_a_model_that_is_too_large_to_ask_about_is_told(tmp_path, monkeypatch):
    path = saved(tmp_path / "model.onnx", "y = MatMul(x, w)", "float16")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  16 kB\nMemAvailable:  0 kB\n")
    monkeypatch.setattr(memory, "_MEMORY", meminfo)
    (refusal,) = refusals(io.load(path), path, "onnxruntime")
    assert "ONNX Runtime was not asked whether it loads this model: " in str(refusal)
