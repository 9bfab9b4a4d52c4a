"""Engines really run, on machines with a GPU that one of the installed TensorRTs builds for."""

import numpy as np
import pytest

from mpdeploy.engine.building import build_engine
from mpdeploy.engine.gpu import find_gpus
from mpdeploy.engine.options import BuildOptions, Feature, parse_shapes
from mpdeploy.errors import DependencyError, MpdeployError, UsageError
from mpdeploy.graph import io
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.emulator import EmulatorRunner

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["tensorrt", "rtx"])
def make(tmp_path, request):
    """Return a function that builds a model for this GPU, by each TensorRT that can, and loads the engine."""
    from mpdeploy.engine.runner import EngineRunner

    def build_and_load(model, shapes=(), **wishes):
        engine = tmp_path / "model.engine"
        targets = (find_gpus()[0].capability,) if request.param == "rtx" else ()
        options = BuildOptions(profiles=parse_shapes(shapes), capabilities=targets, **wishes)
        try:
            record = build_engine(model, engine, backend=request.param, options=options)
        except (DependencyError, UsageError) as error:
            pytest.skip(f"no engine by {request.param} for this GPU: {error}")
        assert record.inspected is not None
        return EngineRunner(engine)

    return build_and_load


@pytest.fixture(params=[Format.FP16, Format.BF16])
def pair(layer, make, request):
    """An engine's runner, and the emulator on the model that it was built from."""
    model = layer(request.param, rows="N")
    runner = make(model, ["x:1x4:1x4:1x4", "x:2x4:8x4:32x4"])
    return runner, EmulatorRunner(io.load(model), "model")


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
    with pytest.raises(MpdeployError, match="is on cpu, the engine reads"):
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


def test_t15_a_fusion_across_reductions_is_not_miscompiled(text_model, make):
    """A known fault of TensorRT 11.2: where the installed one has it, this test says so."""
    model = text_model(REDUCTIONS)
    x = np.random.default_rng(0).normal(size=(1, 2, 8, 8)).astype(np.float32) * 10
    expected = EmulatorRunner(io.load(model), "model").run({"x": x})["y"]
    np.testing.assert_allclose(make(model).run({"x": x})["y"], expected, rtol=1e-3, atol=1e-3)


BRANCHES = """<ir_version: 10, opset_import: ["" : 17]>
t17 (float[4,4] x, bool c) => (float[a,b] y) <int64[2] lo = {0,0}, int64[2] hi = {2,2}> {
    y = If<then_branch = g1 () => (float[4,4] t) { t = Relu(x) },
           else_branch = g2 () => (float[2,2] e) { e = Slice(x, lo, hi) }>(c)
}"""
RESHAPE = """<ir_version: 10, opset_import: ["" : 17]>
g (float[2,6] x, int64[2] size) => (float[a,b] y) { y = Reshape(x, size) }"""
SCALED = """<ir_version: 10, opset_import: ["" : 17]>
g (float[N,6] x, float s) => (float[N,6] y, float total) {
    y = Mul(x, s)  total = ReduceSum<keepdims=0>(y)
}"""


def test_t17_a_size_that_the_data_decide(text_model, make):
    runner = make(text_model(BRANCHES))
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    for choice, expected in ((True, x), (False, x[:2, :2]), (True, x)):
        np.testing.assert_array_equal(runner.run({"x": x, "c": np.array(choice)})["y"], expected)


def test_values_that_decide_a_shape(text_model, make):
    runner = make(text_model(RESHAPE), ["size:1x1:3x4:12x12"])
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    for size in ((3, 4), (12, 1), (1, 12)):
        assert runner.run({"x": x, "size": np.array(size)})["y"].shape == size
    with pytest.raises(UsageError, match="outside"):
        runner.run({"x": x, "size": np.array([13, 1])})


def test_scalars_empty_tensors_and_views(text_model, make):
    runner = make(text_model(SCALED), ["x:0x6:2x6:8x6"])
    for rows in (2, 0, 5):
        x = np.random.default_rng(rows).normal(size=(rows, 6)).astype(np.float32)
        got = runner.run({"x": x, "s": np.array(2, np.float32)})
        np.testing.assert_array_equal(got["y"], 2 * x)
        assert got["total"].shape == ()
    torch = pytest.importorskip("torch")
    many = torch.rand(7, 7, device="cuda")
    for view in (many.flatten()[1:43].view(7, 6), many[:, 1:]):
        torch.testing.assert_close(
            runner.run_tensors({"x": view, "s": torch.tensor(2.0, device="cuda")})["y"], 2 * view
        )


def test_two_streams_in_turn(pair):
    torch = pytest.importorskip("torch")
    runner, _ = pair
    x = torch.rand(8, 4, device="cuda")
    torch.cuda.synchronize()
    expected = runner.run_tensors({"x": x})["y"].cpu()
    got = []
    for _ in range(20):
        with torch.cuda.stream(torch.cuda.Stream()):
            got.append(runner.run_tensors({"x": x})["y"])
    torch.cuda.synchronize()
    assert all(torch.equal(y.cpu(), expected) for y in got)


@pytest.mark.parametrize(
    "feature", [Feature.REFIT, Feature.STRIP_WEIGHTS, Feature.WEIGHT_STREAMING, Feature.STRICT_NANS]
)
def test_an_engine_with_a_feature_computes_the_same(layer, make, feature):
    model = layer(Format.FP16)
    x = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    expected = EmulatorRunner(io.load(model), "model").run({"x": x})["y"]
    np.testing.assert_allclose(make(model, features=(feature,)).run({"x": x})["y"], expected, atol=0.02)


def test_a_timing_cache_is_filled_and_read(layer, tmp_path):
    timings = tmp_path / "timings"
    options = BuildOptions(timing_cache=str(timings))
    try:
        build_engine(layer(), tmp_path / "first.engine", backend="tensorrt", options=options)
    except DependencyError as error:
        pytest.skip(str(error))
    filled = timings.read_bytes()
    assert len(filled) > 100
    timings.write_bytes(b"not timings")
    build_engine(layer(), tmp_path / "second.engine", backend="tensorrt", options=options)
    assert len(timings.read_bytes()) > 100


def test_t18_kernels_are_kept_beside_the_engine(layer, make, tmp_path):
    runner = make(layer(Format.FP16))
    if runner.record.backend != "rtx":
        pytest.skip("only TensorRT for RTX compiles where it runs")
    runner.run({"x": np.ones((4, 4), np.float32)})
    assert (tmp_path / "model.engine.kernels").stat().st_size > 100
