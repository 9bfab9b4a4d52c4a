"""The emulator rounds alike wherever nodes stand: main graph, function, branch, loop; and in chains of Casts."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from mpdeploy.graph import io
from mpdeploy.runtime.emulator import EmulatorRunner

node, info = helper.make_node, helper.make_tensor_value_info
CODES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}
DTYPES = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}
OPERATORS = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Sqrt": lambda a, _: np.sqrt(a),
    "Neg": lambda a, _: -a,
}
ONE_OPERAND = ("Sqrt", "Neg")
TURNS = 3


def rounded(array, kind):
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(np.float32).astype(DTYPES[kind]).astype(np.float64)


# A step: operator, or a Cast through another format and back; and which earlier value it reads beside the newest.
steps = st.lists(
    st.tuples(st.sampled_from([*OPERATORS, "fp32", "fp16", "bf16"]), st.integers(0, 7)), min_size=1, max_size=8
)


def chain(plan, low, first, last):
    """The nodes that lead from ``first`` to ``last``."""
    nodes, values = [], [first]
    for i, (kind, other) in enumerate(plan):
        name = last if i == len(plan) - 1 else f"{last}_{i}"
        if kind in CODES:
            nodes.append(node("Cast", [values[-1]], [f"{name}_c"], to=CODES[kind]))
            nodes.append(node("Cast", [f"{name}_c"], [name], to=CODES[low]))
        else:
            operands = [values[-1]] if kind in ONE_OPERAND else [values[-1], values[other % len(values)]]
            nodes.append(node(kind, operands, [name]))
        values.append(name)
    return nodes


def expected(plan, low, x):
    values = [x]
    for kind, other in plan:
        with np.errstate(all="ignore"):
            if kind in CODES:
                values.append(rounded(rounded(values[-1], kind), low))
            else:
                values.append(rounded(OPERATORS[kind](values[-1], values[other % len(values)]), low))
    return values[-1]


def placed(plan, low, place):
    """The chain between two Casts, at a place; a loop runs it ``TURNS`` times on its own result."""
    functions, weights, code = [], [], CODES[low]
    if place == "graph":
        middle = chain(plan, low, "h", "out")
    elif place == "function":
        opsets = [helper.make_opsetid("", 22)]
        functions = [helper.make_function("my", "Chain", ["h"], ["out"], chain(plan, low, "h", "out"), opsets)]
        middle = [node("Chain", ["h"], ["out"], domain="my")]
    elif place == "branch":
        branches = {
            f"{name}_branch": helper.make_graph(chain(plan, low, "h", name), name, [], [info(name, code, None)])
            for name in ("then", "else")
        }
        weights = [numpy_helper.from_array(np.array(True), "yes")]
        middle = [node("If", ["yes"], ["out"], **branches)]
    else:
        state = [info("i", TensorProto.INT64, []), info("on", TensorProto.BOOL, []), info("s", code, None)]
        body = helper.make_graph(
            [node("Identity", ["on"], ["on2"]), *chain(plan, low, "s", "r")],
            "body",
            state,
            [info("on2", TensorProto.BOOL, []), info("r", code, None)],
        )
        weights = [numpy_helper.from_array(np.int64(TURNS), "turns")]
        middle = [node("Loop", ["turns", "", "h"], ["out"], body=body)]
    nodes = [node("Cast", ["x"], ["h"], to=code), *middle, node("Cast", ["out"], ["y"], to=TensorProto.FLOAT)]
    graph = helper.make_graph(nodes, "g", [info("x", 1, [4])], [info("y", 1, [4])], weights)
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


@pytest.mark.parametrize("low", ["fp16", "bf16"])
@pytest.mark.parametrize("place", ["graph", "function", "branch", "loop"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(plan=steps, seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-5, 1.0, 300.0]))
def test_rounding_is_that_of_float64_arithmetic_at_every_place(tmp_path_factory, low, place, plan, seed, scale):
    x = (np.random.default_rng(seed).standard_normal(4) * scale).astype(np.float32)
    path = tmp_path_factory.mktemp("place") / "model.onnx"
    onnx.save(placed(plan, low, place), path)
    got = EmulatorRunner(io.load(path), "m").run({"x": x})["y"].astype(np.float64)
    want = rounded(x, low)
    for _ in range(TURNS if place == "loop" else 1):
        want = expected(plan, low, want)
    np.testing.assert_array_equal(got, want)
