"""ONNX Runtime as a runner: types numpy has no name for, kernels of older versions, providers."""

from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpdeploy.errors import DependencyError, ModelError
from mpdeploy.graph import io
from mpdeploy.graph.lowering import lowered
from mpdeploy.graph.operators import opset_of
from mpdeploy.runtime import ort
from mpdeploy.runtime.emulator import EmulatorRunner
from mpdeploy.runtime.ort import CPU, CUDA, OrtRunner

node = helper.make_node


def test_bfloat16_goes_in_and_comes_out(load):
    model = load([node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], {"x": ("bf16", ["N"])}, {"y": ("fp32", ["N"])})
    x = np.array([1.5, -3e38, np.inf, 1e-40], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(OrtRunner(model, "m").run({"x": x})["y"], x.astype(np.float32))
    back = load([node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)], {"x": ("fp32", ["N"])}, {"y": ("bf16", ["N"])})
    y = OrtRunner(back, "m").run({"x": np.float32([0.1, 3.4e38])})["y"]
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y, np.array([0.1, np.inf], ml_dtypes.bfloat16))
    assert OrtRunner(back, "m").run({"x": np.zeros(0, np.float32)})["y"].shape == (0,)


@pytest.fixture
def roi_align(load):
    return load(
        [
            node("Relu", ["x"], ["r"]),
            node("RoiAlign", ["r", "rois", "batch"], ["y"], output_height=2, output_width=2),
        ],
        {"x": ("fp32", [1, 1, 8, 8]), "rois": ("fp32", [1, 4]), "batch": ("i64", [1])},
        {"y": ("fp32", [1, 1, 2, 2])},
        opset=22,
    )


def test_an_operator_without_a_kernel_at_its_version_runs_as_the_older_one(roi_align):
    feed = {
        "x": np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8),
        "rois": np.float32([[1, 1, 7, 7]]),
        "batch": np.int64([0]),
    }
    got = OrtRunner(roi_align, "m").run(feed)["y"]
    older = lowered(roi_align)
    assert opset_of(older, "") == 21
    assert opset_of(roi_align, "") == 22
    np.testing.assert_array_equal(got, OrtRunner(older, "m").run(feed)["y"])
    # A plane, averaged over each quarter of [0.5, 6.5]² (RoiAlign moves by half a pixel): its value in the middle.
    np.testing.assert_allclose(got[0, 0], [[18, 21], [42, 45]], rtol=1e-6)


def test_what_would_mean_something_else_is_not_lowered(load):
    changed = load(
        [node("ReduceMax", ["x", "axes"], ["y"])],
        {"x": ("fp32", [2, 3])},
        {"y": ("fp32", [1, 3])},
        [numpy_helper.from_array(np.int64([0]), "axes")],
        opset=18,
    )
    assert lowered(changed) is None  # axes was an attribute before
    younger = load(
        [node("Attention", ["x", "x", "x"], ["y"])],
        {"x": ("fp32", [1, 1, 2, 4])},
        {"y": ("fp32", [1, 1, 2, 4])},
        opset=23,
    )
    assert lowered(younger) is None  # opset 22 has no Attention


def test_a_kernel_that_no_version_has_is_a_fault_in_one_line(load):
    model = load([node("Relu", ["x"], ["y"])], {"x": ("bf16", [2])}, {"y": ("bf16", [2])}, opset=14)
    with pytest.raises(ModelError, match="ONNX Runtime refuses the model"):
        OrtRunner(model, "m")


@pytest.mark.parametrize("low", ["fp16", "bf16"])
def test_the_emulator_uses_the_older_kernel_too(load, low):
    code = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[low]
    model = load(
        [
            node("Cast", ["x"], ["h"], to=code),
            node("RoiAlign", ["h", "rois", "batch"], ["a"], output_height=1, output_width=1, sampling_ratio=1),
            node("Cast", ["a"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ("fp32", [1, 1, 4, 4]), "rois": (low, [1, 4]), "batch": ("i64", [1])},
        {"y": ("fp32", [1, 1, 1, 1])},
        opset=22,
    )
    x = np.full((1, 1, 4, 4), 0.1, np.float32)
    dtype = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}[low]
    feed = {"x": x, "rois": np.array([[0, 0, 3, 3]], dtype), "batch": np.int64([0])}
    assert EmulatorRunner(model, "m").run(feed)["y"].item() == np.float32(dtype(0.1))


def test_a_provider_that_is_missing_or_falls_back_is_told(roi_align):
    with pytest.raises(DependencyError, match="has no Nonsense"):
        OrtRunner(roi_align, "m", providers=("Nonsense",))
    if CUDA in onnxruntime.get_available_providers():
        try:
            runner = OrtRunner(roi_align, "m", providers=(CUDA, CPU))
        except DependencyError as error:
            assert "cannot start CUDAExecutionProvider" in str(error)  # noqa: PT017 - only where there is no GPU
        else:
            assert runner.describe().provider == CUDA
            assert "TF32 off" in runner.describe().precision


def test_unfused_and_single_threaded_runs_agree_within_float32(load):
    rng = np.random.default_rng(0)
    model = load(
        [node("MatMul", ["x", "w"], ["m"]), node("Softmax", ["m"], ["y"])],
        {"x": ("fp32", ["N", 256])},
        {"y": ("fp32", ["N", 256])},
        [numpy_helper.from_array(rng.standard_normal((256, 256)).astype(np.float32), "w")],
    )
    feed = {"x": rng.standard_normal((8, 256)).astype(np.float32)}
    runs = [OrtRunner(model, "m", threads=t, fused=f).run(feed)["y"] for t in (0, 1) for f in (True, False)]
    for other in runs[1:]:
        np.testing.assert_allclose(other, runs[0], rtol=1e-4, atol=1e-7)


def test_scalars_and_a_foreign_byte_order_are_read_as_the_numbers_that_they_are(load):
    ports = {"x": ("fp32", [2]), "s": ("fp32", [])}
    model = load(
        [node("Mul", ["x", "s"], ["y"]), node("Identity", ["s"], ["t"])], ports, {"y": ("fp32", [2]), "t": ("fp32", [])}
    )
    got = OrtRunner(model, "m").run({"x": np.array([1, 2], ">f4"), "s": np.array(3, ">f4")})
    assert (got["y"].tolist(), got["t"].shape) == ([3, 6], ())
    low = load([node("Cast", ["s"], ["t"], to=TensorProto.FLOAT)], {"s": ("bf16", [])}, {"t": ("fp32", [])})
    assert OrtRunner(low, "m").run({"s": np.array(3, ml_dtypes.bfloat16)})["t"].shape == ()


def test_an_fp32_model_runs_as_in_a_session_of_ones_own(load, tmp_path, monkeypatch):
    """What ratios refer to is ONNX Runtime as anybody would run it: the same fused graph, the same threads."""
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    model = load(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Add", ["m", "b"], ["a"]),
            node("Erf", ["a"], ["e"]),
            node("Mul", ["a", "e"], ["g"]),
            node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
            node("Mul", ["g", "f"], ["y"]),
        ],
        {"x": ("fp32", ["N", 64]), "n": ("i64", [])},
        {"y": ("fp32", ["N", 64])},
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(weights[0], "b")],
    )
    path, plain_path, ours_path = (str(tmp_path / name) for name in ("m.onnx", "plain.onnx", "ours.onnx"))
    io.save(model, Path(path))
    plain = onnxruntime.SessionOptions()
    plain.optimized_model_filepath, plain.log_severity_level = plain_path, 4
    onnxruntime.InferenceSession(path, plain, providers=[CPU])
    real, made = ort._options, []

    def watched(*arguments, **words):
        options = real(*arguments, **words)
        options.optimized_model_filepath = ours_path
        made.append(options)
        return options

    monkeypatch.setattr(ort, "_options", watched)
    OrtRunner(model, "m")
    kinds = [Counter(n.op_type for n in onnx.load(p).graph.node) for p in (plain_path, ours_path)]
    assert kinds[0] == kinds[1]
    assert kinds[0]["Erf"] <= 1
    (ours,) = made
    for setting in (
        "intra_op_num_threads", "inter_op_num_threads", "execution_mode", "enable_mem_pattern", "enable_cpu_mem_arena",
        "graph_optimization_level",
    ):  # fmt: skip
        assert getattr(ours, setting) == getattr(plain, setting), setting
