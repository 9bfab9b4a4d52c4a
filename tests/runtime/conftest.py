"""Small ONNX graphs under test: written to a file and read back as every command does."""

import onnx
import pytest
from onnx import TensorProto, helper

from mpdeploy.graph import io

TYPES = {
    "fp32": TensorProto.FLOAT,
    "fp16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
    "fp64": TensorProto.DOUBLE,
    "i64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}


@pytest.fixture
def load(tmp_path):
    """Return a function: nodes, {input: (type, shape)}, {output: (type, shape)} -> model as `io.load` gives it."""

    def build(nodes, inputs, outputs, initializers=(), opset=17, domains=()):
        def infos(values):
            return [helper.make_tensor_value_info(n, TYPES[t], shape) for n, (t, shape) in values.items()]

        graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), list(initializers))
        imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
        path = tmp_path / "model.onnx"
        onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
        return io.load(path)

    return build
