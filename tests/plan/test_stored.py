"""What a stored tensor loses is weighed where it goes; tiny numbers matter where a logarithm or a division follows."""

import numpy as np
import onnx
import onnx.helper as oh
import onnx.parser
import pytest
from onnx import TensorProto, numpy_helper

from mpdeploy.conversion.api import convert
from mpdeploy.verification.api import verify

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


@pytest.fixture
def planned(workshop):
    """Plan a graph with stored tensors; return the formats by node and the result."""

    def plan(text, stored, precision="fp16", **words):
        path = workshop.source(text, 17)
        model = onnx.load(path)
        model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in stored.items())
        onnx.save(model, path)
        decided = workshop.plan_of(path, precision, **words)
        return {d.node: d.format.value for d in decided.decisions}

    return plan


def with_tiny(array, count, value=1e-9):
    array = array.copy()
    array.ravel()[:count] = value
    return array


def test_a_batch_norm_spelled_out_with_tiny_shifts_runs_low(planned):
    # A19: shifts below 6e-8 beside activations of order 1 kept every Add, and what touches it, in FP32.
    text = """g (float[2,4,8,8] x) => (float[2,4,8,8] y) {
        [c] a = Conv<pads = [1,1,1,1]>(x, w)  [sub] b = Sub(a, mean)  [mul] d = Mul(b, scale)  [add] e = Add(d, shift)
        [c2] y = Conv<pads = [1,1,1,1]>(e, w)
    }"""
    stored = {
        "w": normal(4, 4, 3, 3) / 6,
        "mean": normal(1, 4, 1, 1) * np.float32(1e-8),
        "scale": np.float32(1) + normal(1, 4, 1, 1) / 10,
        "shift": normal(1, 4, 1, 1) * np.float32(1e-8),
    }
    assert set(planned(text, stored).values()) == {"fp16"}
    assert set(planned(text, stored, data={"x": normal(2, 4, 8, 8)}).values()) == {"fp16"}


def test_a_summand_that_is_all_there_is_keeps_its_digits(planned):
    text = "g (float[2,4] x) => (float[2,4] y) { [m] a = Mul(x, s)  [add] b = Add(a, shift)  [n] y = Mul(b, t) }"
    stored = {"s": np.float32(1e-8), "t": np.float32(1e8), "shift": normal(4) * np.float32(1e-8)}
    formats = planned(text, stored, data={"x": normal(2, 4)})
    assert formats["add"] == "fp32"


@pytest.mark.parametrize("tiny", [1, 3])
def test_a_few_tiny_elements_keep_no_operator_in_fp32(planned, tiny):
    # A23: "loses 100 %" by its worst element, 2e-9 by its norm.
    text = """g (float[2,16] x) => (float[2,16] y) {
        [mm] a = MatMul(x, w)  [ln] b = LayerNormalization(a, scale, bias)  [mul] c = Mul(b, gain)
        [m2] y = MatMul(c, w)
    }"""
    stored = {"w": normal(16, 16) / 4, "scale": with_tiny(np.ones(16, np.float32), tiny)}
    stored |= {"bias": with_tiny(normal(16), tiny), "gain": with_tiny(normal(16), tiny)}
    assert set(planned(text, stored, data={"x": normal(2, 16)}).values()) == {"fp16"}


@pytest.mark.parametrize("step", ["Div(a, t)", "Pow(a, t)"])
def test_a_divisor_and_an_exponent_count_element_by_element(planned, step):
    text = f"g (float[2,16] x) => (float[2,16] y) {{ [mm] a = MatMul(x, w)  [s] b = {step}  [m2] y = MatMul(b, w) }}"
    stored = {"w": np.abs(normal(16, 16)) / 4, "t": with_tiny(np.ones(16, np.float32), 1, 1.3e-7)}
    formats = planned(text, stored, data={"x": np.abs(normal(2, 16)) / 1e4})
    assert formats["s"] == "fp32"


def test_a_root_of_tiny_numbers_keeps_no_convolution(planned):
    # A10: sqrt of 1e-28 is 1e-14, and 0 in half: no difference beside the others.
    text = """g (float[1,4,8] x) => (float[1,4,8] y) { [c] a = Conv(x, w)  [sq] b = Mul(a, a)  [root] y = Sqrt(b) }"""
    x = normal(1, 4, 8)
    x[..., 3:6] = 1e-9
    formats = planned(text, {"w": normal(4, 4, 1)}, data={"x": x})
    assert formats == {"c": "fp16", "sq": "fp16", "root": "fp16"}
    log = text.replace("y = Sqrt(b)", "s = Sqrt(b)  [log] y = Log(s)")
    assert planned(log, {"w": normal(4, 4, 1)}, data={"x": x})["root"] == "fp32"


def loop_model(trips):
    """A recurrence as tf2onnx writes it: its kernel is carried through the loop and never changed."""
    kernel = with_tiny(normal(32, 32) / 6, 2)
    nodes = [
        oh.make_node("MatMul", ["h", "k"], ["p"], "product"),
        oh.make_node("Tanh", ["p"], ["h2"], "tanh"),
        oh.make_node("Identity", ["k"], ["k2"], "same"),
        oh.make_node("Identity", ["go"], ["go2"], "on"),
    ]
    tensor = oh.make_tensor_value_info
    body = oh.make_graph(
        nodes,
        "body",
        [
            tensor("i", TensorProto.INT64, []),
            tensor("go", TensorProto.BOOL, []),
            tensor("h", TensorProto.FLOAT, [4, 32]),
            tensor("k", TensorProto.FLOAT, [32, 32]),
        ],
        [
            tensor("go2", TensorProto.BOOL, []),
            tensor("h2", TensorProto.FLOAT, [4, 32]),
            tensor("k2", TensorProto.FLOAT, [32, 32]),
        ],
    )
    loop = oh.make_node("Loop", ["trips", "", "x", "kernel"], ["y", "kernel_out"], "loop", body=body)
    graph = oh.make_graph(
        [loop],
        "g",
        [tensor("x", TensorProto.FLOAT, [4, 32])],
        [tensor("y", TensorProto.FLOAT, [4, 32])],
        [numpy_helper.from_array(np.int64(trips), "trips"), numpy_helper.from_array(kernel, "kernel")],
    )
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("data", [None, {"x": normal(4, 32)}])
def test_what_a_loop_carries_unchanged_is_converted_once(workshop, data):
    # A9: the kernel stayed FP32 for 2 of its elements, and the body cast it in every iteration.
    path, low = workshop.folder / "loop.onnx", workshop.folder / "low.onnx"
    onnx.save(loop_model(20), path)
    result = convert(path, low, precision="fp16", data=data)
    made = onnx.load(low)
    (loop,) = (n for n in made.graph.node if n.op_type == "Loop")
    (body,) = (a.g for a in loop.attribute if a.name == "body")
    assert [n.op_type for n in body.node if n.op_type == "Cast"] == []
    assert result.model_bytes < 0.75 * result.source_bytes
    assert verify(path, low, [{"x": normal(4, 32)}]).verdict.passed


def test_bytes_cast_are_those_of_the_data(workshop):
    # A22: each dynamic dimension counted 64.
    text = "g (float[N,M] x) => (float[N,M] y) { a = MatMul(x, x)  y = Relu(a) }"
    path = workshop.source(text)
    x = normal(5, 5)
    result = convert(path, workshop.folder / "low.onnx", precision="fp16", data=[{"x": x}])
    assert (result.casts, result.bytes_cast) == (2, 25 * 4 + 25 * 2)
