"""Quantised graphs run as they are written, whatever a runtime would make of them (B3)."""

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from mpdeploy.conversion.api import convert
from mpdeploy.graph import io
from mpdeploy.runtime.ort import OrtRunner

TEXT = """<ir_version: 9, opset_import: ["" : 19]>
g (float[N,64] x) => (float[N,32] y) {
    q = QuantizeLinear(x, s, z)
    d = DequantizeLinear(q, s, z)
    w = DequantizeLinear(wq, ws, z)
    m = MatMul(d, w)
    qm = QuantizeLinear(m, sm, z)
    y = DequantizeLinear(qm, sm, z)
}"""
X = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)


def quantised(kind):
    model = onnx.parser.parse_model(TEXT)
    weights = np.random.default_rng(1).integers(-100, 100, (64, 32)).astype(np.float32)
    numbers = {"s": 0.03, "ws": 0.001, "sm": 0.02}
    model.graph.initializer.extend(numpy_helper.from_array(np.float32(v), name) for name, v in numbers.items())
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((), kind), "z"))
    model.graph.initializer.append(numpy_helper.from_array(weights.astype(kind), "wq"))
    return model, weights.astype(kind).astype(np.float32)


def rounded(array, scale, kind):
    scaled = array / np.float32(scale)
    if kind == np.int8:
        scaled = np.clip(np.rint(scaled), -128, 127)
    return scaled.astype(kind).astype(np.float32) * np.float32(scale)


@pytest.mark.parametrize("kind", [np.int8, ml_dtypes.float8_e4m3fn], ids=["int8", "float8"])
def test_a_quantised_product_has_the_values_that_the_graph_gives(kind, tmp_path):
    model, weights = quantised(kind)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    runner = OrtRunner(io.load(path), str(path))
    product = rounded(X, 0.03, kind) @ (weights * np.float32(0.001))
    wanted = rounded(product, 0.02, kind)
    got = runner.run({"x": X})["y"]
    # A product that lies on the border of two steps may fall to either side.
    assert np.mean(np.abs(got - wanted) > 1e-5) < 0.01
    assert runner.describe().evidence
    fused = OrtRunner(io.load(path), str(path), as_written=kind != np.int8)
    assert fused.describe().evidence == (kind != np.int8)


def test_a_float8_model_is_calibrated(tmp_path):
    """A12: by default ONNX Runtime invents an operator that it cannot run."""
    path = tmp_path / "model.onnx"
    onnx.save(quantised(ml_dtypes.float8_e4m3fn)[0], path)
    result = convert(path, tmp_path / "low.onnx", precision="fp16", data=[{"x": X}])
    assert result.operators
