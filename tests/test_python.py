"""The functions take what a Python caller would write: formats, single words, paths and arrays."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import mpdeploy
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format

MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 8] x) => (float[n, 4] y)
   <float[8, 4] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8,
                     0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}>
   { h = MatMul(x, w)  y = Tanh(h) }"""
FEED = {"x": np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)}


@pytest.fixture
def source(tmp_path):
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("precision", ["bf16", "BF16", Format.BF16])
def test_a_precision_is_a_word_in_any_case_or_a_format(precision, source, tmp_path):
    result = mpdeploy.convert(source, tmp_path / "low.onnx", precision=precision, data=FEED)
    assert result.precision is Format.BF16
    exported = mpdeploy.export(source, tmp_path / "out", precision=precision, data=FEED, engine="none")
    assert exported.passed
    found = mpdeploy.search(source, tmp_path / "s.onnx", precision=precision, data=FEED)
    assert found.verdict.passed


def test_an_export_plans_as_a_conversion_does(source, tmp_path):
    words = {"keep_fp32": "Tanh*", "op_fp32": ["MatMul"], "target": "openvino", "policy": "fast"}
    exported = mpdeploy.export(source, tmp_path / "out", precision="fp16", data=FEED, **words)
    converted = mpdeploy.convert(source, tmp_path / "low.onnx", precision="fp16", data=FEED, **words)
    assert Path(exported.models[0].conversion.model).read_bytes() == Path(converted.model).read_bytes()
    assert exported.models[0].conversion.low_flops == 0
    low = mpdeploy.export(source, tmp_path / "low", precision="fp16", data=FEED, low_io=True)
    assert onnx.load(low.models[0].conversion.model).graph.input[0].type.tensor_type.elem_type == 10


def test_one_word_is_one_word(source, tmp_path):
    np.savez(tmp_path / "d.npz", **FEED)
    data = tmp_path / "d.npz"
    kept = mpdeploy.convert(source, tmp_path / "low.onnx", precision="fp16", op_fp32="MatMul", data=data)
    assert kept.low_flops == 0
    with pytest.raises(UsageError, match="unknown precision 'int3'"):
        mpdeploy.convert(source, tmp_path / "no.onnx", precision="int3")
    assert not Path(tmp_path / "no.onnx").exists()


def test_layers_are_one_word_away(source, tmp_path):
    low = mpdeploy.convert(source, tmp_path / "low.onnx", precision="fp16", data=FEED)
    report = mpdeploy.verify(source, low.model, FEED, layers=True, noise=False)
    assert report.blame is not None
    assert not report.noise


def test_a_reference_that_is_coarser_than_its_candidate_is_refused(source, tmp_path):
    low = mpdeploy.convert(source, tmp_path / "low.onnx", precision="fp16", data=FEED)
    with pytest.raises(UsageError, match=r"the reference computes in fp16, the candidate in fp32.* --force"):
        mpdeploy.verify(low.model, source, FEED)
    assert mpdeploy.verify(low.model, source, FEED, force=True, noise=False).verdict.passed
    assert mpdeploy.verify(low.model, low.model, FEED, noise=False).verdict.passed


def test_two_different_models_are_told_before_the_data_are_blamed(source, tmp_path):
    other = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n, 8, 1] other) => (float[n, 8, 1] y) { y = Tanh(other) }'
    )
    onnx.save(onnx.parser.parse_model(other), tmp_path / "other.onnx")
    with pytest.raises(UsageError, match=r"the models do not match: the reference takes x.*candidate takes other"):
        mpdeploy.verify(source, tmp_path / "other.onnx", FEED)


def test_what_failed_is_false_and_what_passed_is_true(source, tmp_path):
    low = mpdeploy.convert(source, tmp_path / "low.onnx", precision="fp16", data=FEED)
    assert low
    assert low.passed
    for budget, passed in (("norm_relative<=0.1", True), ("norm_relative<=1e-9", False)):
        report = mpdeploy.verify(source, low.model, FEED, budget, noise=False)
        exported = mpdeploy.export(source, tmp_path / f"{passed}", precision="fp16", data=FEED, budget=budget)
        for result in (report, exported):
            assert (result.passed, bool(result)) == (passed, passed)
    assert mpdeploy.search(source, tmp_path / "s.onnx", precision="fp16", data=FEED).passed
