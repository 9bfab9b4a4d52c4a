"""The proof of precision, on networks as a parser could have made them."""

import pytest

from mpdeploy.engine.building import build_engine
from mpdeploy.engine.network import Census, Network
from mpdeploy.engine.proof import ProductFormat, check_kept, check_lowered, check_plan
from mpdeploy.errors import BuildError
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.facts import ModelFacts


def network(outputs, compute=None, types=None):
    return Network((), (), Census(outputs, compute or {}, {}), types or {})


def model(**values):
    return ModelFacts("model.onnx", (), 1, values, {})


def test_a_format_of_the_model_must_not_vanish():
    check_kept(network({"fp16": 3, "fp32": 1}), model(fp16=3, fp32=1))
    check_kept(network({"fp32": 1}), model(fp32=1))
    with pytest.raises(BuildError, match="computes in fp16, but"):
        check_kept(network({"fp32": 4}), model(fp16=3, fp32=1))


def test_arithmetic_counts_where_there_is_some():
    mostly_moves = network({"fp16": 2, "fp32": 40, "int64": 9}, compute={"fp16": 2, "fp32": 1})
    check_lowered(mostly_moves, ProductFormat.FP16, "model.onnx")
    with pytest.raises(BuildError, match="2 in fp16"):
        check_lowered(mostly_moves, ProductFormat.FP32, "model.onnx")


def test_without_arithmetic_all_floats_count():
    check_lowered(network({"fp16": 3, "fp32": 1, "int64": 20}), ProductFormat.FP16, "model.onnx")
    for counts in ({"fp16": 2, "fp32": 2}, {"int64": 5}, {}):
        with pytest.raises(BuildError, match="would not compute in fp16"):
            check_lowered(network(counts), ProductFormat.FP16, "model.onnx")


def test_every_value_of_the_plan_is_held_to_its_format():
    half = network({"fp16": 2}, types={"a": "fp16", "b": "fp16", "c": "fp32"})
    check_plan(half, {"a": Format.FP16, "c": Format.FP32, "folded": Format.FP16}, "model.onnx")
    with pytest.raises(BuildError, match="'c' is fp32, planned fp16"):
        check_plan(half, {"a": Format.FP16, "c": Format.FP16}, "model.onnx")
    with pytest.raises(BuildError, match="and 1 more"):
        check_plan(network({}, types=dict.fromkeys("abcd", "fp32")), dict.fromkeys("abcd", Format.FP16), "m")


def test_float64_becomes_float32_and_that_is_told(text_model, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    wide = text_model('<ir_version: 10, opset_import: ["" : 17]> g (double[2,4] x) => (double[2,4] y) { y = Exp(x) }')
    record = build_engine(wide, tmp_path / "model.engine")
    assert record.warnings == ("1 float64 values of the model are float32 in the engine",)
