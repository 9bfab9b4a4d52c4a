"""Engines really run, on machines with a GPU that one of the installed TensorRTs builds for."""

import numpy as np
import pytest

from mpdeploy.engine.api import build
from mpdeploy.engine.gpu import find_gpus
from mpdeploy.engine.options import BuildOptions, parse_shapes
from mpdeploy.errors import DependencyError, MpdeployError, UsageError
from mpdeploy.graph import io
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.emulator import EmulatorRunner

pytestmark = pytest.mark.gpu


@pytest.fixture(params=[Format.FP16, Format.BF16])
def pair(layer, tmp_path, request):
    """An engine's runner, and the emulator on the model that it was built from."""
    from mpdeploy.engine.runner import EngineRunner

    model, engine = layer(request.param, rows="N"), tmp_path / "model.engine"
    capability = find_gpus()[0].capability
    profiles = parse_shapes(["x:1x4:1x4:1x4", "x:2x4:8x4:32x4"])
    for backend, targets in (("tensorrt", ()), ("rtx", (capability,))):
        try:
            build(model, engine, backend=backend, options=BuildOptions(profiles=profiles, capabilities=targets))
            return EngineRunner(engine), EmulatorRunner(io.load(model), "model")
        except (DependencyError, UsageError) as error:
            reason = error
    return pytest.skip(f"no TensorRT for this GPU: {reason}")


@pytest.mark.parametrize("rows", [1, 2, 32])
def test_the_engine_computes_what_the_emulator_foresees(pair, rows):
    runner, emulator = pair
    x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
    np.testing.assert_allclose(runner.run({"x": x})["y"], emulator.run({"x": x})["y"], atol=0.02)
    assert runner.describe().evidence


def test_tensors_stay_on_the_gpu(pair):
    torch = pytest.importorskip("torch")
    runner, _ = pair
    x = torch.rand(2, 4, device="cuda")
    y = runner.run_tensors({"x": x})["y"]
    assert y.is_cuda
    np.testing.assert_array_equal(y.cpu().numpy(), runner.run({"x": x.cpu().numpy()})["y"])
    with pytest.raises(MpdeployError, match="is on cpu"):
        runner.run_tensors({"x": x.cpu()})


def test_what_does_not_fit_raises(pair):
    runner, _ = pair
    for wrong in (np.zeros((2, 4), np.float16), np.zeros((2, 5), np.float32), np.zeros((33, 4), np.float32)):
        with pytest.raises(UsageError):
            runner.run({"x": wrong})


REDUCTIONS = """<ir_version: 10, opset_import: ["" : 22]>
t15 (float[1,2,8,8] x) => (float[1,2,8,8] y)
    <float[2,2,1,1] w = {0.5,-0.25,0.75,1}, float tiny = {0.001}, int64[3] axes = {1,2,3}> {
    low = ReduceMin<keepdims=1>(x, axes)  high = ReduceMax<keepdims=1>(x, axes)
    moved = Sub(x, low)  range = Sub(high, low)  wide = Add(range, tiny)  scaled = Div(moved, wide)
    mixed = Conv(scaled, w)  grown = Mul(mixed, wide)  y = Add(grown, low)
}"""


def test_t15_a_fusion_across_reductions_is_not_miscompiled(text_model, tmp_path):
    """A known fault of TensorRT 11.2: where the installed one has it, this test says so."""
    from mpdeploy.engine.runner import EngineRunner

    model, engine = text_model(REDUCTIONS), tmp_path / "model.engine"
    x = np.random.default_rng(0).normal(size=(1, 2, 8, 8)).astype(np.float32) * 10
    try:
        build(model, engine, backend="tensorrt")
    except DependencyError as error:
        pytest.skip(str(error))
    expected = EmulatorRunner(io.load(model), "model").run({"x": x})["y"]
    np.testing.assert_allclose(EngineRunner(engine).run({"x": x})["y"], expected, rtol=1e-3, atol=1e-3)
