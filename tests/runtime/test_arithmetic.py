"""Stricter sums and what-if operands, against numpy that does the same step by step."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.rounding import rounded
from mpdeploy.runtime.accumulate import Accumulation
from mpdeploy.runtime.emulator import Arithmetic, EmulatorRunner
from mpdeploy.runtime.what_if import round_operands

node = helper.make_node
LOW = {"fp16": (TensorProto.FLOAT16, np.float16), "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}
STRICT = [Accumulation.HALF, Accumulation.CHUNKED]
formats = pytest.mark.parametrize("low", ["fp16", "bf16"])
modes = pytest.mark.parametrize("mode", STRICT)


def to(array, low):
    with np.errstate(all="ignore"):
        return np.asarray(array, np.float32).astype(LOW[low][1]).astype(np.float32)


def running(products, low, chunk):
    """The sum along axis 0, in chunks, rounded after each."""
    total = to(products[:chunk].sum(0, dtype=np.float32), low)
    for start in range(chunk, len(products), chunk):
        total = to(total + products[start : start + chunk].sum(0, dtype=np.float32), low)
    return total


def weights(low, **arrays):
    code, dtype = LOW[low]
    return [helper.make_tensor(k, code, v.shape, v.astype(dtype).tobytes(), raw=True) for k, v in arrays.items()]


def strict(model, feed, mode):
    runner = EmulatorRunner(model, "m", arithmetic=Arithmetic(mode))
    return runner.run(feed)["y"], runner.describe()


def ulps(got, want, low):
    step = np.maximum(np.abs(want), 1e-3) * {"fp16": 2.0**-10, "bf16": 2.0**-7}[low]
    return np.abs(got - want) / step


def low_model(load, low, nodes, feed_shapes, shape, initializers=(), opset=18):
    code, _ = LOW[low]
    casts = [node("Cast", [name], [f"{name}_low"], to=code) for name in feed_shapes]
    last = node("Cast", ["out"], ["y"], to=TensorProto.FLOAT)
    inputs = {name: ("fp32", dims) for name, dims in feed_shapes.items()}
    return load([*casts, *nodes, last], inputs, {"y": ("fp32", shape)}, initializers, opset=opset)


@formats
@modes
@pytest.mark.parametrize("terms", [300, 512])
def test_matmul_of_any_ranks(load, low, mode, terms):
    rng = np.random.default_rng(terms)
    a, b = rng.random((2, 3, 5, terms)), rng.random((terms, 4))
    model = low_model(
        load, low, [node("MatMul", ["a_low", "w"], ["out"])], {"a": [2, "H", "L", terms]}, [2, "H", "L", 4],
        weights(low, w=b),
    )  # fmt: skip
    got, ran = strict(model, {"a": a.astype(np.float32)}, mode)
    products = to(a, low)[..., None] * to(b, low)
    want = running(np.moveaxis(products, -2, 0), low, mode.value)
    # float32 sums in another order may fall on the other side of a tie, once in a while.
    assert np.mean(got == want) > 0.9
    assert ulps(got, want, low).max() < 3
    assert f"rounded after every {mode.value} terms" in ran.precision
    plain = EmulatorRunner(model, "m").run({"a": a.astype(np.float32)})["y"]
    assert np.mean(got == plain) < 0.9, "the mode must show"


@formats
@modes
def test_gemm_with_all_its_attributes(load, low, mode):
    rng = np.random.default_rng(1)
    a, b, c = rng.random((300, 3)), rng.random((5, 300)), rng.random(5)
    gemm = node("Gemm", ["a_low", "w", "c"], ["out"], alpha=0.5, beta=2.0, transA=1, transB=1)
    model = low_model(load, low, [gemm], {"a": [300, 3]}, [3, 5], weights(low, w=b, c=c))
    got, _ = strict(model, {"a": a.astype(np.float32)}, mode)
    products = to(a, low)[:, :, None] * to(b, low).T[:, None, :]
    want = to(running(products, low, mode.value) * 0.5 + to(c, low) * 2, low)
    assert ulps(got, want, low).max() < 3


@formats
@modes
def test_conv_adds_over_channels(load, low, mode):
    rng = np.random.default_rng(2)
    x, w, b = rng.random((2, 70, 6, 5)), rng.random((4, 70, 3, 3)), rng.random(4)
    conv = node("Conv", ["x_low", "w", "b"], ["out"], pads=[1, 1, 1, 1], strides=[2, 1])
    model = low_model(load, low, [conv], {"x": ["N", 70, 6, 5]}, ["N", 4, 3, 5], weights(low, w=w, b=b), opset=22)
    got, _ = strict(model, {"x": x.astype(np.float32)}, mode)
    padded = np.pad(to(x, low), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::2]
    per_channel = np.einsum("ncyxij,mcij->cnmyx", windows, to(w, low), dtype=np.float32)
    want = to(running(per_channel, low, max(1, mode.value // 9)) + to(b, low)[:, None, None], low)
    assert got.shape == want.shape == (2, 4, 3, 5)
    assert ulps(got, want, low).max() < 3


@formats
@pytest.mark.parametrize(("op", "keepdims"), [("ReduceSum", 1), ("ReduceMean", 0), ("GlobalAveragePool", 1)])
def test_a_running_total_over_a_large_map_stalls(load, low, op, keepdims):
    """A7: the mean is 0.5, the sum 131072, which float32 adds up without fault."""
    axes = [] if op == "GlobalAveragePool" else ["axes"]
    attributes = {"keepdims": keepdims} if axes else {}
    constants = [numpy_helper.from_array(np.int64([2, 3]), "axes")] if axes else []
    shape = [1, 2, 1, 1] if keepdims else [1, 2]
    model = low_model(
        load, low, [node(op, ["x_low", *axes], ["out"], **attributes)], {"x": [1, 2, 512, 512]}, shape, constants,
        opset=22,
    )  # fmt: skip
    x = np.full((1, 2, 512, 512), 0.5, np.float32)
    got, _ = strict(model, {"x": x}, Accumulation.HALF)
    assert got.shape == tuple(shape)
    plain = EmulatorRunner(model, "m").run({"x": x})["y"]
    terms = 512 * 512
    if op == "ReduceSum":
        assert (plain == (np.inf if low == "fp16" else terms / 2)).all()
    else:
        assert (plain == 0.5).all()
    # 16 terms of 0.5 make 8: too little to move a running total that is 2048 (FP16) or 256 (BF16) times as large.
    stalled = 8 * {"fp16": 2048, "bf16": 256}[low]
    assert (got == (stalled if op == "ReduceSum" else to(stalled / terms, low))).all()


def steps(x, axes, low, epsilon, centred=True):
    if centred:
        x = to(x - to(x.mean(axes, keepdims=True, dtype=np.float32), low), low)
    with np.errstate(over="ignore"):
        squares = to(x * x, low)
        variance = to(to(squares.mean(axes, keepdims=True, dtype=np.float32), low) + np.float32(epsilon), low)
    return to(x / to(np.sqrt(variance), low), low)


@formats
def test_norms_round_each_step(load, low):
    """A8: the squares of what lies in range overflow FP16 inside the operator."""
    rng = np.random.default_rng(4)
    x, s, b = rng.standard_normal((2, 3, 8, 8)) * 300, rng.random(3), rng.random(3)
    norm = node("InstanceNormalization", ["x_low", "s", "b"], ["out"], epsilon=1e-3)
    model = low_model(load, low, [norm], {"x": [2, 3, 8, 8]}, [2, 3, 8, 8], weights(low, s=s, b=b), opset=22)
    got, _ = strict(model, {"x": x.astype(np.float32)}, Accumulation.HALF)
    normal = steps(to(x, low), (2, 3), low, 1e-3)
    want = to(to(normal * to(s, low)[:, None, None], low) + to(b, low)[:, None, None], low)
    assert ulps(got, want, low).max() < 3
    plain = EmulatorRunner(model, "m").run({"x": x.astype(np.float32)})["y"]
    assert plain.std() > 0.1
    if low == "fp16":  # some variances are infinite, so only the bias is left
        flat = got.reshape(6, -1)
        assert (flat == flat[:, :1]).all(axis=1).any()


@formats
@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_norms_over_the_last_axes(load, low, op):
    rng = np.random.default_rng(5)
    x, s, b = rng.standard_normal((4, 6, 8)) * 100, rng.random((6, 8)), rng.random((6, 8))
    operands = ["s", "b"] if op == "LayerNormalization" else ["s"]
    norm = node(op, ["x_low", *operands], ["out"], axis=1, epsilon=1e-5)
    stored = weights(low, **{k: v for k, v in {"s": s, "b": b}.items() if k in operands})
    model = low_model(load, low, [norm], {"x": ["N", 6, 8]}, ["N", 6, 8], stored, opset=23)
    got, _ = strict(model, {"x": x.astype(np.float32)}, Accumulation.HALF)
    want = to(steps(to(x, low), (1, 2), low, 1e-5, centred=op == "LayerNormalization") * to(s, low), low)
    want = to(want + to(b, low), low) if "b" in operands else want
    assert ulps(got, want, low).max() < 3


def test_what_cannot_be_counted_is_told(load):
    nodes = [node("Transpose", ["a_low"], ["t"], perm=[1, 0]), node("MatMul", ["a_low", "t"], ["out"])]
    model = low_model(load, "fp16", nodes, {"a": ["N", "K"]}, ["N", "N"])
    got, ran = strict(model, {"a": np.ones((2, 500), np.float32)}, Accumulation.HALF)
    assert (got == 500).all()
    assert ran.note == "1 operators whose sizes are unknown compute in float32"


def test_float32_operators_stay_as_they_are(load):
    w = numpy_helper.from_array(np.full((4096, 1), 1.0, np.float32), "w")
    model = load([node("MatMul", ["x", "w"], ["y"])], {"x": ("fp32", [1, 4096])}, {"y": ("fp32", [1, 1])}, [w])
    got, _ = strict(model, {"x": np.ones((1, 4096), np.float32)}, Accumulation.HALF)
    assert got.item() == 4096


def test_an_old_opset_is_raised(load):
    w = weights("fp16", w=np.ones((64, 1)))
    model = low_model(load, "fp16", [node("MatMul", ["a_low", "w"], ["out"])], {"a": [1, 64]}, [1, 1], w, opset=13)
    got, _ = strict(model, {"a": np.ones((1, 64), np.float32)}, Accumulation.HALF)
    assert got.item() == 64


# --- what if ------------------------------------------------------------------------------------------------


@pytest.fixture
def product(load):
    """y = x · 1, so that y is what became of x; and of 1, which every format holds."""
    one = numpy_helper.from_array(np.ones((1, 1), np.float32), "one")
    return load([node("MatMul", ["x", "one"], ["y"])], {"x": ("fp32", ["N", 1])}, {"y": ("fp32", ["N", 1])}, [one])


def what_if(model, x, target):
    return EmulatorRunner(model, "m", arithmetic=Arithmetic(operands=target)).run({"x": x})["y"]


def test_tf32_keeps_eleven_bits(product):
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    x = bits.view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) > 2.0**-100) & (np.abs(x) < 2.0**113)][:, None]
    got, want = what_if(product, x, Format.TF32), rounded(x, Format.TF32)
    kept = got.view(np.uint32) & np.uint32(0x1FFF)
    assert not kept.any()
    # Only a number in the middle between two others may go either way.
    differs = got != want
    assert (np.abs(got - x)[differs] == np.abs(want - x)[differs]).all()
    assert differs.mean() < 1e-3


def test_tf32_in_a_model(product):
    x = np.float32([[1 + 2**-12], [1 + 2**-10], [-3.14159], [1e30], [0], [65519]])
    got = what_if(product, x, Format.TF32)
    np.testing.assert_array_equal(got, rounded(x, Format.TF32))
    assert got[0, 0] == 1
    assert np.isinf(what_if(product, np.float32([[np.inf]]), Format.TF32)).all()
    assert np.isnan(what_if(product, np.float32([[np.nan]]), Format.TF32)).all()


@pytest.mark.parametrize("target", [Format.FP8E4M3, Format.FP8E5M2])
def test_eight_bits_with_the_largest_magnitude_at_the_formats_end(product, target):
    x = np.random.default_rng(0).standard_normal((200, 1)).astype(np.float32) * 1e-3
    scale = np.float32(target.max) / np.abs(x).max()
    want = (x * scale).astype(target.dtype).astype(np.float32) / scale
    np.testing.assert_allclose(what_if(product, x, target), want, rtol=1e-6)
    assert len(np.unique(want)) < 128
    assert (what_if(product, np.zeros((3, 1), np.float32), target) == 0).all()


def test_what_ran_is_told_and_other_formats_are_refused(product):
    ran = EmulatorRunner(product, "m", arithmetic=Arithmetic(operands=Format.TF32)).describe()
    assert "operands of 1 matrix operators rounded to tf32" in ran.precision
    with pytest.raises(UsageError, match="cannot be tried in fp16"):
        round_operands(product, Format.FP16)
