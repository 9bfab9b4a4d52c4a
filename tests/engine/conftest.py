"""Tiny ONNX models to build engines from."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpdeploy.numerics.formats import Format

ONNX_TYPES = {
    Format.FP32: TensorProto.FLOAT,
    Format.FP16: TensorProto.FLOAT16,
    Format.BF16: TensorProto.BFLOAT16,
}


@pytest.fixture
def layer(tmp_path):
    """Return a function that writes Softmax(x @ w) in ``kind`` to a file: FP32 in and out, weights of ``stored``."""

    def write(kind=Format.FP16, *, rows=4, stored=None, external=False, name="model.onnx") -> Path:
        values = np.random.default_rng(0).normal(size=(4, 8)).astype(ml_dtypes.bfloat16)
        weights = numpy_helper.from_array(values.astype((stored or kind).dtype), "w")
        nodes = [
            helper.make_node("Cast", ["x"], ["low"], name="into", to=ONNX_TYPES[kind]),
            helper.make_node("MatMul", ["low", "w"], ["product"], name="multiply"),
            helper.make_node("Softmax", ["product"], ["shares"], name="share"),
            helper.make_node("Cast", ["shares"], ["y"], name="out", to=TensorProto.FLOAT),
        ]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4])]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 8])]
        graph = helper.make_graph(nodes, "layer", inputs, outputs, [weights])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
        path = tmp_path / name
        if external:
            onnx.save(model, path, save_as_external_data=True, location=f"{name}.data", size_threshold=0)
        else:
            onnx.save(model, path)
        return path

    return write


@pytest.fixture
def text_model(tmp_path):
    """Return a function that writes a model given as text."""

    def write(text, name="text.onnx") -> Path:
        path = tmp_path / name
        path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
        return path

    return write
