"""OpenVINO runs BF16 graphs in BF16, and says where its numbers are no evidence."""

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from mpdeploy.errors import DependencyError, ModelError, UsageError
from mpdeploy.graph import io
from mpdeploy.runtime.emulator import EmulatorRunner
from mpdeploy.runtime.openvino import OpenVinoRunner
from mpdeploy.runtime.ort import OrtRunner

openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed")
native_bf16 = pytest.mark.skipif(
    "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"), reason="this CPU has no BF16"
)

PRODUCT = """<ir_version: 10, opset_import: ["" : 22]>
g (float[N,8] x) => (float[N,N] y) {{
    low = Cast<to={code}>(x)  turned = Transpose<perm=[1,0]>(low)
    product = MatMul(low, turned)  y = Cast<to=1>(product)
}}"""
TYPED = """<ir_version: 10, opset_import: ["" : 22]>
g (bfloat16[N,8] x, bool[N] b, int64[N] i) => (bfloat16[N,8] y, bool[N] nb, int64[N] j) {
    y = Add(x, x)  nb = Not(b)  j = Add(i, i)
}"""
FOREIGN = """<ir_version: 10, opset_import: ["" : 22, "other" : 1]>
g (float[N,8] x) => (float[N,8] y) { y = other.Unknown(x) }"""


@pytest.fixture
def model(tmp_path):
    def write(text):
        path = tmp_path / "model.onnx"
        path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
        return path

    return write


def random(rows=3):
    return np.random.default_rng(0).normal(size=(rows, 8)).astype(np.float32)


def test_fp32_stays_fp32(model):
    path, feed = model(PRODUCT.format(code=1)), {"x": random()}
    runner = OpenVinoRunner(path, threads=1)
    np.testing.assert_allclose(runner.run(feed)["y"], OrtRunner(io.load(path), "m").run(feed)["y"], rtol=1e-6)
    assert (runner.describe().precision, runner.describe().evidence) == ("fp32", True)


@native_bf16
def test_bf16_is_computed_in_bf16(model):
    path, feed = model(PRODUCT.format(code=16)), {"x": random()}
    runner = OpenVinoRunner(path)
    got, exact = runner.run(feed)["y"], feed["x"] @ feed["x"].T
    assert np.abs(got - exact).max() > 1e-4  # FP32 would be within 1e-6
    emulated = EmulatorRunner(io.load(path), "m").run(feed)["y"]
    assert np.linalg.norm(got - emulated) < 0.02 * np.linalg.norm(exact)  # sums inside the product may round, too
    assert runner.describe().evidence
    assert "bf16" in runner.describe().precision


def test_an_fp16_run_is_no_evidence(model):
    described = OpenVinoRunner(model(PRODUCT.format(code=10))).describe()
    assert not described.evidence
    assert "FP16" in described.note


def test_types_go_in_and_come_out_as_the_model_declares(model):
    runner = OpenVinoRunner(model(TYPED))
    x = random().astype(ml_dtypes.bfloat16)
    first = runner.run({"x": x, "b": np.array([True, False, True]), "i": np.arange(3)})
    runner.run({"x": x + x, "b": np.array([True, True, True]), "i": np.arange(3)})
    assert first["y"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(first["y"], x + x)  # the second run has not overwritten it
    np.testing.assert_array_equal(first["nb"], [False, True, False])
    np.testing.assert_array_equal(first["j"], [0, 2, 4])


def test_what_does_not_fit_is_refused(model):
    runner = OpenVinoRunner(model(PRODUCT.format(code=1)))
    with pytest.raises(UsageError, match="does not fit"):
        runner.run({"x": np.zeros((3, 7), np.float32)})
    with pytest.raises(UsageError, match="float64, the model takes x float32"):
        runner.run({"x": np.zeros((3, 8))})
    with pytest.raises(UsageError, match="lacks input 'x'"):
        runner.run({})


def test_a_refusal_is_one_line(model):
    with pytest.raises(ModelError, match=r"OpenVINO refuses the model: .*model\.onnx") as caught:
        OpenVinoRunner(model(FOREIGN))
    assert ".cpp" not in str(caught.value)


def test_without_openvino_the_extra_is_named(model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(DependencyError, match=r"pip install 'mpdeploy\[openvino\]'"):
        OpenVinoRunner(model(PRODUCT.format(code=1)))


def test_scalars_and_a_foreign_byte_order_are_read_as_the_numbers_that_they_are(model):
    text = '<ir_version: 10, opset_import: ["" : 22]> g (X[2] x, X s) => (X[2] y, X t) { y = Mul(x, s)  t = Mul(s, s) }'
    for name, dtype in (("float", ">f4"), ("bfloat16", ml_dtypes.bfloat16)):
        runner = OpenVinoRunner(model(text.replace("X", name)))
        got = runner.run({"x": np.array([1, 2], dtype), "s": np.array(3, dtype)})
        assert (got["y"].tolist(), got["t"].shape, got["t"].tolist()) == ([3, 6], (), 9)


def test_an_output_that_is_an_input_or_another_output(model):
    text = """<ir_version: 10, opset_import: ["" : 22]>
g (float[2] x) => (float[2] x, float[2] y, float[2] z) { y = Relu(x)  z = Identity(y) }"""
    got = OpenVinoRunner(model(text)).run({"x": np.array([1, -2], np.float32)})
    assert {name: array.tolist() for name, array in got.items()} == {"x": [1, -2], "y": [1, 0], "z": [1, 0]}
