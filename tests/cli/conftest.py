"""A small classifier and data for it, for commands that take a model."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

# Heavy, harmless and dangerous operators: exp(x²) leaves FP16 for the larger inputs.
NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,16] x) => (float[N,4] logits, float[N,1] energy) {
    [first] h = MatMul(x, w0)
    [second] r = Relu(h)
    [third] logits = MatMul(r, w1)
    [square] s = Mul(x, x)
    [total] t = ReduceMax<axes = [1]>(s)
    [grow] energy = Exp(t)
}"""


def write_net(path, scale=1.0):
    rng = np.random.default_rng(3)
    model = onnx.parser.parse_model(NET)
    for name, shape in (("w0", (16, 32)), ("w1", (32, 4))):
        weight = (rng.standard_normal(shape) * scale / 4).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def net(tmp_path):
    """A file with a model of 16 features, 4 classes, and a second output that overflows FP16."""
    return write_net(tmp_path / "net.onnx")


@pytest.fixture
def data(tmp_path):
    """A file with 64 samples for ``net``; the largest feature is about 3.6, so exp(x²) is about 400 thousand."""
    x = np.random.default_rng(4).standard_normal((64, 16)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, labels=np.arange(64) % 4)
    return tmp_path / "data.npz"
