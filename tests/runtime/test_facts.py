"""What a record says of a model's files."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpdeploy.errors import DependencyError, ModelError
from mpdeploy.files import sha256_of
from mpdeploy.graph import io
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.choose import truthful_runner
from mpdeploy.runtime.facts import model_facts
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.runtime.runner import TensorSpec, input_specs

node = helper.make_node


@pytest.fixture
def external(tmp_path):
    """A model of 64 kB whose weights lie in a file beside it."""
    w = np.random.default_rng(0).standard_normal((64, 128)).astype(np.float16)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
            node("MatMul", ["h", "w"], ["m"]),
            node("Cast", ["m"], ["y"], to=TensorProto.FLOAT),
        ],
        "g",
        [info("x", TensorProto.FLOAT, ["batch", 64])],
        [info("y", TensorProto.FLOAT, ["batch", 128])],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path, w


def test_files_hashes_and_formats(external):
    path, _ = external
    facts = model_facts(io.load(path), path)
    assert [f.name for f in facts.files] == ["model.onnx", "weights.bin"]
    assert facts.files[1].sha256 == sha256_of(path.with_name("weights.bin"))
    assert facts.bytes == sum(p.stat().st_size for p in path.parent.iterdir())
    assert facts.values == {"fp16": 2, "fp32": 1}
    assert facts.weights == {"fp16": 64 * 128}
    assert facts.coarsest is Format.FP16


def test_a_model_with_external_weights_runs(external):
    path, w = external
    runner = truthful_runner(io.load(path), str(path))
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    got = runner.run({"x": x})["y"]
    want = (x.astype(np.float16).astype(np.float64) @ w.astype(np.float64)).astype(np.float16)
    np.testing.assert_allclose(got, want.astype(np.float32), rtol=2**-10)
    assert runner.inputs == (TensorSpec("x", "float32", ("batch", 64)),)
    assert str(runner.inputs[0]) == "x float32[batch,64]"


def test_an_input_with_a_default_need_not_be_fed(load):
    model = load(
        [node("Add", ["x", "b"], ["y"])],
        {"x": ("fp32", [2]), "b": ("fp32", [2])},
        {"y": ("fp32", [2])},
        [numpy_helper.from_array(np.float32([1, 2]), "b")],
    )
    assert [spec.name for spec in input_specs(model)] == ["x"]
    got = OrtRunner(model, "m").run({"x": np.zeros(2, np.float32)})["y"]
    np.testing.assert_array_equal(got, [1, 2])


def test_a_missing_provider_is_told(load):
    model = load([node("Relu", ["x"], ["y"])], {"x": ("fp32", [2])}, {"y": ("fp32", [2])})
    with pytest.raises(DependencyError, match="VitisAI") as caught:
        OrtRunner(model, "m", providers=("VitisAIExecutionProvider",))
    assert "CPUExecutionProvider" in str(caught.value)


def test_an_operator_that_fails_on_the_data_is_one_line(load):
    model = load(
        [node("Reshape", ["x", "s"], ["y"])],
        {"x": ("fp32", ["N"])},
        {"y": ("fp32", [None, None])},
        [numpy_helper.from_array(np.int64([2, -1]), "s")],
    )
    with pytest.raises(ModelError) as caught:
        OrtRunner(model, "model.onnx").run({"x": np.zeros(3, np.float32)})
    assert "\n" not in str(caught.value)
    assert "model.onnx" in str(caught.value)
