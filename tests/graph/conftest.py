"""Models under test: every place where a weight can lie."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper


def _weights(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _convolution():
    """Weights as initializers: large and small ones, integers, one without elements, one stored as float_data."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Reshape", ["p", "shape"], ["f"]),
        helper.make_node("MatMul", ["f", "fc"], ["m"]),
        helper.make_node("Add", ["m", "bias"], ["y"]),
    ]
    stored = [
        numpy_helper.from_array(_weights(32, 1, 3, 3), "w"),
        numpy_helper.from_array(np.array([-1, 32]), "shape"),
        numpy_helper.from_array(_weights(32, 16), "fc"),
        helper.make_tensor("bias", onnx.TensorProto.FLOAT, [16], _weights(16)),
        numpy_helper.from_array(np.empty((0, 7), np.float32), "nothing"),
    ]
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("x", 1, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("y", 1, ["batch", 16])],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"author": "somebody"})
    return model, {"x": _weights(2, 1, 8, 8, seed=1)}


def _branches():
    """Large weights inside If branches, as initializer and as Constant, and one in a Loop's body."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    branches (float[N,64] x, bool flag, int64 turns) => (float[N,64] y) {
        picked = If (flag) <
            then_branch = yes () => (float[N,64] a) { a = MatMul(x, inner) },
            else_branch = no () => (float[N,64] b) { b = Mul(x, x) }>
        go = Constant<value = bool {1}> ()
        y = Loop (turns, go, picked) <
            body = turn (int64 i, bool c, float[N,64] s) => (bool c2, float[N,64] s2) {
                c2 = Identity(c)  t = Tanh(s)  s2 = MatMul(t, step)
            }>
    }"""
    model = onnx.parser.parse_model(text)
    then_graph = model.graph.node[0].attribute[0].g
    then_graph.initializer.append(numpy_helper.from_array(_weights(64, 64), "inner"))
    body = model.graph.node[2].attribute[0].g
    constant = helper.make_node("Constant", [], ["step"], value=numpy_helper.from_array(_weights(64, 64, seed=2) / 8))
    body.node.insert(0, constant)
    feed = {"x": _weights(3, 64, seed=1), "flag": np.array(True), "turns": np.array(2)}
    return model, feed


def _functions():
    """A local function that calls another; a large Constant in the inner one."""
    text = """<ir_version: 9, opset_import: ["" : 18, "mine" : 1]>
    outer (float[N,32] x) => (float[N,32] y) { h = mine.twice(x)  y = mine.twice(h) }
    <domain: "mine", opset_import: ["" : 18, "mine" : 1]>
    twice (a) => (c) { b = mine.dense(a)  c = mine.dense(b) }
    <domain: "mine", opset_import: ["" : 18]>
    dense (p) => (q) { m = MatMul(p, w)  q = Tanh(m) }
    """
    model = onnx.parser.parse_model(text)
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(_weights(32, 32)))
    model.functions[1].node.insert(0, constant)
    return model, {"x": _weights(4, 32, seed=1)}


def _sparse():
    """Two sparse initializers: indices in one dimension, and in two."""
    flat = helper.make_sparse_tensor(
        helper.make_tensor("a", 1, [3], [1.0, 2.0, 3.0]), helper.make_tensor("i", 7, [3], [0, 5, 15]), [4, 4]
    )
    pairs = helper.make_sparse_tensor(
        helper.make_tensor("b", 1, [2], [4.0, 5.0]), helper.make_tensor("j", 7, [2, 2], [0, 3, 2, 1]), [4, 4]
    )
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])],
        "sparse",
        [helper.make_tensor_value_info("x", 1, [4, 4])],
        [helper.make_tensor_value_info("y", 1, [4, 4])],
        sparse_initializer=[flat, pairs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, {"x": _weights(4, 4, seed=1)}


BUILDERS = {"convolution": _convolution, "branches": _branches, "functions": _functions, "sparse": _sparse}


@pytest.fixture(params=list(BUILDERS))
def sample(request):
    """A model and a feed for it; one test run for each."""
    return BUILDERS[request.param]()


@pytest.fixture
def sample_of():
    """Return a function: name of a model -> (model, feed)."""
    return lambda name: BUILDERS[name]()


@pytest.fixture
def run():
    """Return a function that runs a model file, or its bytes, in ONNX Runtime."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)

    def outputs(model, feed):
        source = model if isinstance(model, bytes) else str(model)
        return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, feed)

    return outputs
