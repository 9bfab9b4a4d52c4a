"""The emulator against arithmetic in float64 (or float32) with every tensor rounded by numpy."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from mpdeploy.errors import ModelError
from mpdeploy.graph import io
from mpdeploy.runtime.emulator import EmulatorRunner
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.runtime.twin import float_twin, low_formats

LOW = {"fp16": (TensorProto.FLOAT16, np.float16), "bf16": (TensorProto.BFLOAT16, ml_dtypes.bfloat16)}
# BF16 by the schemas needs opset 22 for some operators; ONNX Runtime has their float32 kernels.
OPSET = 22
node = helper.make_node
formats = pytest.mark.parametrize("low", ["fp16", "bf16"])


def rounded(array, low):
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(np.float32).astype(LOW[low][1]).astype(np.float64)


def emulate(model, feed):
    return EmulatorRunner(model, "model.onnx").run(feed)


def wide(array):
    return np.asarray(array).astype(np.float64)


def test_onnx_runtime_hides_the_overflow_that_the_emulator_shows(load):
    model = load(
        [
            node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
            node("Exp", ["h"], ["e"]),
            node("Log", ["e"], ["l"]),
            node("Cast", ["l"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ("fp32", ["N"])},
        {"y": ("fp32", ["N"])},
    )
    feed = {"x": np.float32([12])}
    hidden = OrtRunner(model, "model.onnx")
    assert hidden.run(feed)["y"][0] == pytest.approx(12, abs=1e-2)
    assert not hidden.describe().evidence
    shown = EmulatorRunner(model, "model.onnx")
    assert shown.run(feed)["y"][0] == np.inf  # exp(12) = 162755 is beyond FP16, log(inf) = inf
    assert shown.describe().evidence


@formats
def test_a_cast_pair_rounds_every_kind_of_number_to_nearest_even(load, low):
    code, dtype = LOW[low]
    model = load(
        [node("Cast", ["x"], ["h"], to=code), node("Cast", ["h"], ["y"], to=TensorProto.FLOAT)],
        {"x": ("fp32", ["N"])},
        {"y": ("fp32", ["N"])},
    )
    numbers = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float32)
    numbers = numbers[np.isfinite(numbers)]
    below, above = (np.nextafter(numbers, np.float32(s * np.inf)) for s in (-1, 1))
    ordered = np.sort(numbers)
    ties = ((ordered[1:].astype(np.float64) + ordered[:-1]) / 2).astype(np.float32)
    ties_up, ties_down = (np.nextafter(ties, np.float32(s * np.inf)) for s in (1, -1))
    special = np.float32([np.inf, -np.inf, np.nan, 0.0, -0.0, np.finfo(np.float32).max, 1e-45])
    x = np.concatenate([numbers, below, above, ties, ties_up, ties_down, special])
    want = rounded(x, low).astype(np.float32)
    got = emulate(model, {"x": x})["y"]
    assert np.array_equal(np.isnan(got), np.isnan(want))
    real = ~np.isnan(want)
    assert np.array_equal(got[real].view(np.uint32), want[real].view(np.uint32))  # signs of zero, too


# --- random chains of operators, each step rounded by numpy -------------------------------------------------

UNARY = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Relu": lambda a: np.maximum(a, 0),
    "Floor": np.floor,
    "Sqrt": np.sqrt,
    "Reciprocal": lambda a: 1 / a,
    "Identity": lambda a: a,
}
BINARY = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum}
MOVES = {"Transpose": lambda a: a.T, "Flatten": lambda a: a}


@st.composite
def chains(draw):
    """Steps (operator, operands by index of an earlier value)."""
    steps = []
    for i in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from([*UNARY, *BINARY, *MOVES]))
        arity = 2 if kind in BINARY else 1
        steps.append((kind, [draw(st.integers(0, i)) for _ in range(arity)]))
    return steps


@formats
@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps=chains(), seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-6, 1.0, 300.0]))
def test_random_chains_equal_float64_arithmetic_with_rounding(tmp_path_factory, low, steps, seed, scale):
    code, _ = LOW[low]
    x = (np.random.default_rng(seed).standard_normal((3, 3)) * scale).astype(np.float32)
    nodes = [node("Cast", ["x"], ["v0"], to=code)]
    values = [rounded(x, low)]
    for i, (kind, operands) in enumerate(steps):
        nodes.append(node(kind, [f"v{o}" for o in operands], [f"v{i + 1}"]))
        with np.errstate(all="ignore"):
            result = (UNARY | BINARY | MOVES)[kind](*(values[o] for o in operands))
        # One float64 operation on such numbers, rounded to float32, is the correctly rounded float32 operation.
        values.append(rounded(result, low))
    nodes.append(node("Cast", [f"v{len(steps)}"], ["y"], to=TensorProto.FLOAT))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", 1, [3, 3])], [info("y", 1, [3, 3])])
    path = tmp_path_factory.mktemp("chain") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10), path)
    got = wide(emulate(io.load(path), {"x": x})["y"])
    np.testing.assert_array_equal(got, values[-1])


@formats
def test_a_sum_overflows_only_where_its_result_is_stored(load, low):
    code, _ = LOW[low]
    model = load(
        [
            node("Cast", ["x"], ["h"], to=code),
            node("ReduceMean", ["h"], ["m"], keepdims=0),  # the sum inside is 4096 * 32 = 131072
            node("ReduceSum", ["h"], ["s"], keepdims=0),
            node("Cast", ["m"], ["mean"], to=TensorProto.FLOAT),
            node("Cast", ["s"], ["sum"], to=TensorProto.FLOAT),
        ],
        {"x": ("fp32", [4096])},
        {"mean": ("fp32", []), "sum": ("fp32", [])},
    )
    got = emulate(model, {"x": np.full(4096, 32, np.float32)})
    assert got["mean"] == 32
    assert got["sum"] == (np.inf if low == "fp16" else 131072)


@formats
def test_matmul_conv_and_weights_in_low_precision(load, low):
    code, dtype = LOW[low]
    rng = np.random.default_rng(7)
    w = rng.standard_normal((64, 48)).astype(np.float32)
    k = rng.standard_normal((4, 1, 3, 3)).astype(np.float32)
    weights = [
        helper.make_tensor("w", code, w.shape, w.astype(dtype).tobytes(), raw=True),
        helper.make_tensor("k", code, k.shape, k.astype(dtype).tobytes(), raw=True),
    ]
    model = load(
        [
            node("Cast", ["x"], ["h"], to=code),
            node("MatMul", ["h", "w"], ["m"]),
            node("Reshape", ["m", "shape"], ["r"]),
            node("Conv", ["r", "k"], ["c"]),
            node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ("fp32", ["N", 64])},
        {"y": ("fp32", ["N", 4, 4, 6])},
        [*weights, numpy_helper.from_array(np.int64([-1, 1, 6, 8]), "shape")],
        opset=OPSET,
    )
    x = rng.standard_normal((2, 64)).astype(np.float32)
    m = rounded(rounded(x, low) @ rounded(w, low), low).reshape(-1, 6, 8)
    windows = np.lib.stride_tricks.sliding_window_view(m, (3, 3), axis=(1, 2))
    want = rounded(np.einsum("nijab,cab->ncij", windows, rounded(k, low)[:, 0]), low)
    got = wide(emulate(model, {"x": x})["y"])
    # float32 sums may fall on the other side of a tie: one unit in the last place at most, and rarely.
    step = np.abs(want) * np.finfo(dtype).eps if low == "fp16" else np.abs(want) * 2.0**-7
    assert np.all(np.abs(got - want) <= step)
    assert np.mean(got == want) > 0.99


@formats
def test_models_with_low_inputs_and_outputs_keep_their_types(load, low):
    _, dtype = LOW[low]
    model = load([node("Mul", ["x", "x"], ["y"])], {"x": (low, [3])}, {"y": (low, [3])}, opset=13)
    runner = EmulatorRunner(model, "model.onnx")
    assert [s.dtype for s in (*runner.inputs, *runner.outputs)] == [np.dtype(dtype).name] * 2
    x = np.array([1.5, 300, np.nan], dtype)
    y = runner.run({"x": x})["y"]
    assert y.dtype == dtype
    np.testing.assert_array_equal(wide(y), rounded(wide(x) ** 2, low))


# --- places where low-precision tensors hide ----------------------------------------------------------------


@formats
def test_both_branches_of_if_round(load, low):
    code, _ = LOW[low]
    info = helper.make_tensor_value_info
    two = helper.make_tensor("two", code, [], np.array(2, LOW[low][1]).tobytes(), raw=True)
    then = helper.make_graph([node("Mul", ["h", "h"], ["t"])], "then", [], [info("t", code, None)])
    other = helper.make_graph([node("Div", ["h", "two"], ["e"])], "else", [], [info("e", code, None)], [two])
    model = load(
        [
            node("Cast", ["x"], ["h"], to=code),
            node("If", ["c"], ["b"], then_branch=then, else_branch=other),
            node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ("fp32", [4]), "c": ("bool", [])},
        {"y": ("fp32", [4])},
    )
    x = np.float32([1.2345, 70.7, 300, 1e-5])
    h = rounded(x, low)
    for condition, want in ((True, h * h), (False, h / 2)):
        got = emulate(model, {"x": x, "c": np.array(condition)})["y"]
        np.testing.assert_array_equal(wide(got), rounded(want, low))


@formats
def test_a_loop_rounds_its_state_in_each_turn(load, low):
    code, dtype = LOW[low]
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Identity", ["go"], ["go_on"]), node("Add", ["s", "step"], ["t"]), node("Identity", ["t"], ["scan"])],
        "body",
        [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("s", code, [1])],
        [info("go_on", TensorProto.BOOL, []), info("t", code, [1]), info("scan", code, [1])],
    )
    constant = [
        helper.make_tensor("step", code, [1], np.array([1], dtype).tobytes(), raw=True),
        helper.make_tensor("zero", code, [1], np.array([0], dtype).tobytes(), raw=True),
        numpy_helper.from_array(np.array(True), "yes"),
    ]
    model = load(
        [
            node("Loop", ["n", "yes", "zero"], ["last", "all"], body=body),
            node("Cast", ["last"], ["y"], to=TensorProto.FLOAT),
            node("Cast", ["all"], ["a"], to=TensorProto.FLOAT),
        ],
        {"n": ("i64", [])},
        {"y": ("fp32", [1]), "a": ("fp32", [None, 1])},
        constant,
    )
    got = emulate(model, {"n": np.array(3000)})
    stalls_at = {"fp16": 2048, "bf16": 256}[low]  # where n + 1 rounds back to n
    assert got["y"][0] == stalls_at
    assert got["a"].shape == (3000, 1)
    assert got["a"].max() == stalls_at


@formats
def test_scan_rounds_its_state(load, low):
    code, dtype = LOW[low]
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Add", ["s", "x1"], ["t"]), node("Identity", ["t"], ["o"])],
        "body",
        [info("s", code, [1]), info("x1", code, [1])],
        [info("t", code, [1]), info("o", code, [1])],
    )
    zero = helper.make_tensor("zero", code, [1], np.array([0], dtype).tobytes(), raw=True)
    model = load(
        [
            node("Cast", ["x"], ["h"], to=code),
            node("Scan", ["zero", "h"], ["t", "o"], body=body, num_scan_inputs=1),
            node("Cast", ["o"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ("fp32", [50, 1])},
        {"y": ("fp32", [50, 1])},
        [zero],
    )
    x = np.random.default_rng(1).standard_normal((50, 1)).astype(np.float32)
    state, want = 0.0, []
    for value in rounded(x, low)[:, 0]:
        state = float(rounded(state + value, low))
        want.append(state)
    np.testing.assert_array_equal(wide(emulate(model, {"x": x})["y"])[:, 0], want)


def test_sequences_of_low_tensors(load):
    low, code = "fp16", TensorProto.FLOAT16  # the schemas have no sequence of BF16
    model = load(
        [
            node("Cast", ["x"], ["h"], to=code),
            node("SequenceEmpty", [], ["s0"], dtype=code),
            node("SequenceInsert", ["s0", "h"], ["s1"]),
            node("Mul", ["h", "h"], ["q"]),
            node("SequenceInsert", ["s1", "q"], ["s2"]),
            node("ConcatFromSequence", ["s2"], ["z"], axis=0),
            node("Cast", ["z"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ("fp32", [2])},
        {"y": ("fp32", [4])},
    )
    h = rounded([1.001, 300.3], low)
    got = emulate(model, {"x": np.float32([1.001, 300.3])})["y"]
    np.testing.assert_array_equal(wide(got), np.concatenate([h, rounded(h * h, low)]))


@pytest.mark.parametrize(("low", "opset"), [("fp16", 17), ("bf16", 21)])
def test_types_named_by_attributes(load, low, opset):
    code, dtype = LOW[low]
    third = helper.make_tensor("v", code, [1], np.array([1 / 3], dtype).tobytes(), raw=True)
    model = load(
        [
            node("Shape", ["x"], ["shape"]),
            node("ConstantOfShape", ["shape"], ["filled"], value=third),
            node("Constant", [], ["constant"], value=third),
            node("CastLike", ["x", "constant"], ["like"]),
            node("Sum", ["filled", "constant", "like"], ["h"]),
            node("Cast", ["h"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ("fp32", [2, 2])},
        {"y": ("fp32", [2, 2])},
        opset=opset,
    )
    x = np.float32([[0.1, 1000.4], [1e-7, -3]])
    v = np.float32(np.array(1 / 3, dtype))
    want = rounded(v + v + rounded(x, low).astype(np.float32), low)
    np.testing.assert_array_equal(wide(emulate(model, {"x": x})["y"]), want)


def test_generators_of_low_numbers(load):
    model = load(
        [
            node("EyeLike", ["x"], ["eye"], dtype=TensorProto.FLOAT16),
            node("RandomNormalLike", ["x"], ["random"], dtype=TensorProto.FLOAT16, mean=0.1, scale=1e-30),
            node("Add", ["eye", "random"], ["h"]),
            node("Cast", ["h"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ("fp32", [2, 2])},
        {"y": ("fp32", [2, 2])},
    )
    tenth = np.float32(np.float16(np.float32(0.1)))
    got = emulate(model, {"x": np.zeros((2, 2), np.float32)})["y"]
    np.testing.assert_array_equal(wide(got), rounded(np.eye(2) + tenth, "fp16"))


@formats
def test_large_weights_in_branches_and_constants(load, low):
    code, dtype = LOW[low]
    numbers = np.random.default_rng(2).standard_normal((3, 4096)).astype(dtype)
    w, k, v = (
        helper.make_tensor(name, code, [4096], row.tobytes(), raw=True)
        for name, row in zip("wkv", numbers, strict=True)
    )
    info = helper.make_tensor_value_info
    then = helper.make_graph([node("Mul", ["h", "w"], ["t"])], "then", [], [info("t", code, None)], [w])
    other = helper.make_graph(
        [node("Constant", [], ["k"], value=k), node("Mul", ["h", "k"], ["e"])], "else", [], [info("e", code, None)]
    )
    model = load(
        [
            node("Constant", [], ["v"], value=v),
            node("Cast", ["x"], ["c"], to=code),
            node("Add", ["c", "v"], ["h"]),
            node("If", ["yes"], ["b"], then_branch=then, else_branch=other),
            node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ("fp32", [4096]), "yes": ("bool", [])},
        {"y": ("fp32", [4096])},
    )
    x = np.random.default_rng(3).standard_normal(4096).astype(np.float32)
    wide_w, wide_k, wide_v = (row.astype(np.float64) for row in numbers)
    h = rounded(rounded(x, low) + wide_v, low)
    for condition, factor in ((True, wide_w), (False, wide_k)):
        got = emulate(model, {"x": x, "yes": np.array(condition)})["y"]
        np.testing.assert_array_equal(wide(got), rounded(h * factor, low))


@pytest.mark.parametrize("operator", ["Cast", "CastLike"])
@pytest.mark.parametrize("kind", ["fp64", "i64"])
def test_casts_from_other_types_round(load, operator, kind):
    operands = {"Cast": ["x"], "CastLike": ["x", "one"]}[operator]
    attributes = {"to": TensorProto.FLOAT16} if operator == "Cast" else {}
    model = load(
        [node(operator, operands, ["h"], **attributes), node("Cast", ["h"], ["y"], to=TensorProto.FLOAT)],
        {"x": (kind, [4])},
        {"y": ("fp32", [4])},
        [numpy_helper.from_array(np.float16(1), "one")],
    )
    x = np.array([1, 2049, -70000, 4099], {"fp64": np.float64, "i64": np.int64}[kind])
    np.testing.assert_array_equal(emulate(model, {"x": x})["y"], [1, 2048, -np.inf, 4100])


@formats
def test_doubles_are_rounded_once(load, low):
    """By way of float32, a number just above the middle between two would land on it, and then go wrong."""
    code, dtype = LOW[low]
    model = load(
        [node("Cast", ["x"], ["h"], to=code), node("Cast", ["h"], ["y"], to=TensorProto.FLOAT)],
        {"x": ("fp64", ["N"])},
        {"y": ("fp32", ["N"])},
    )
    with np.errstate(invalid="ignore"):
        numbers = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float64)
    numbers = np.sort(numbers[np.isfinite(numbers)])
    middles = (numbers[1:] + numbers[:-1]) / 2
    upper, lower = np.float64(numbers[1:]), np.float64(numbers[:-1])
    even = np.where(upper.astype(np.float32).astype(dtype).view(np.uint16) % 2 == 0, upper, lower)
    nudge = np.maximum(np.abs(middles) * 1e-13, 1e-60)
    cases = [(numbers, numbers), (middles, even), (middles + nudge, upper), (middles - nudge, lower)]
    for x, want in cases:
        np.testing.assert_array_equal(emulate(model, {"x": x})["y"], want.astype(np.float32))
    special = np.array([np.inf, -np.inf, 1e300, -1e308, 0.0])
    np.testing.assert_array_equal(emulate(model, {"x": special})["y"], [np.inf, -np.inf, np.inf, -np.inf, 0])
    assert np.isnan(emulate(model, {"x": np.array([np.nan])})["y"]).all()


def test_dequantized_weights_round(load):
    scale = helper.make_tensor("s", TensorProto.FLOAT16, [], np.array(0.1, np.float16).tobytes(), raw=True)
    model = load(
        [node("DequantizeLinear", ["q", "s"], ["h"]), node("Cast", ["h"], ["y"], to=TensorProto.FLOAT)],
        {},
        {"y": ("fp32", [3])},
        [numpy_helper.from_array(np.int8([1, -7, 100]), "q"), scale],
        opset=19,
    )
    want = rounded(np.float32(np.float16(0.1)) * np.float32([1, -7, 100]), "fp16")
    np.testing.assert_array_equal(wide(emulate(model, {})["y"]), want)


def test_operators_of_onnx_runtimes_own_domain(load):
    model = load(
        [
            node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
            node("FusedMatMul", ["h", "h"], ["m"], domain="com.microsoft", transB=1),
            node("Cast", ["m"], ["y"], to=TensorProto.FLOAT),
        ],
        {"x": ("fp32", [4, 8])},
        {"y": ("fp32", [4, 4])},
        domains=["com.microsoft"],
    )
    x = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32) * 100
    h = rounded(x, "fp16")
    got = wide(emulate(model, {"x": x})["y"])
    np.testing.assert_array_equal(got, rounded(h @ h.T, "fp16"))
    assert np.isinf(got).any()  # the squared norms are beyond FP16


def test_an_unknown_operator_is_refused_in_one_line(load):
    model = load(
        [node("Warp", ["x"], ["y"], domain="acme")], {"x": ("fp32", [1])}, {"y": ("fp32", [1])}, domains=["acme"]
    )
    with pytest.raises(ModelError) as caught:
        OrtRunner(model, "model.onnx")
    assert "\n" not in str(caught.value)
    assert "Warp" in str(caught.value)


def test_the_twin_leaves_its_model_alone_and_is_type_valid(load):
    model = load(
        [node("Add", ["x", "w"], ["y"])],
        {"x": ("fp16", [2])},
        {"y": ("fp16", [2])},
        [numpy_helper.from_array(np.float16([1, 2]), "w")],
    )
    twin = float_twin(model)
    assert low_formats(model)
    assert [v.dtype.name for v in model.graph.outputs] == ["FLOAT16"]
    onnx.checker.check_model(io.ir.to_proto(twin), full_check=True)
    assert [v.name for v in twin.graph.outputs] == ["y"]
