"""Eleven models that break when everything is made half, as simple converters do, and the conversion that breaks them.

Each is one fault that users of converters report: overflow, underflow, a lost epsilon.  ``naive_half`` stands for
any converter that turns all floats into halves without a look at the numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Broken:
    """A model in ONNX's text form, its data, and the arithmetic that shows the fault: the default, or ``half``."""

    name: str
    fault: str
    graph: str
    feed: Callable[[], Arrays]
    constants: Callable[[], Arrays] = dict
    emulate: str | None = None

    def model(self) -> onnx.ModelProto:
        proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {self.graph}')
        proto.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in self.constants().items())
        onnx.checker.check_model(proto, full_check=True)
        return proto


def naive_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every float32 tensor made float16, its inputs and outputs kept, clamping nothing."""
    half = onnx.ModelProto()
    half.CopyFrom(model)
    graph = half.graph
    with np.errstate(over="ignore"):
        for i, tensor in enumerate(graph.initializer):
            if tensor.data_type == TensorProto.FLOAT:
                array = numpy_helper.to_array(tensor).astype(np.float16)
                graph.initializer[i].CopyFrom(numpy_helper.from_array(array, tensor.name))
    floats = {v.name for v in (*graph.input, *graph.output) if v.type.tensor_type.elem_type == TensorProto.FLOAT}
    for node in graph.node:
        node.input[:] = [f"{name}_half" if name in floats else name for name in node.input]
        node.output[:] = [f"{name}_half" if name in floats else name for name in node.output]
    before = [
        helper.make_node("Cast", [v.name], [f"{v.name}_half"], f"{v.name}_down", to=TensorProto.FLOAT16)
        for v in graph.input
        if v.name in floats
    ]
    after = [
        helper.make_node("Cast", [f"{v.name}_half"], [v.name], f"{v.name}_up", to=TensorProto.FLOAT)
        for v in graph.output
        if v.name in floats
    ]
    nodes = [*before, *graph.node, *after]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return half


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def f32(*values: object) -> np.ndarray:
    return np.array(values, np.float32)


BROKEN = (
    Broken(
        "masked attention",
        "a mask of float32's minimum becomes -inf: a row that is masked everywhere is NaN",
        "(float[2,4] x, bool[2,4] m) => (float[2,4] y)"
        " { a = Where(m, zero, low) s = Add(x, a) y = Softmax<axis=-1>(s) }",
        lambda: {
            "x": f32([1, 2, 3, 4], [-20, -30, -40, -17]),
            "m": np.array([[True, True, False, False], [False] * 4]),
        },
        lambda: {"zero": np.float32(0), "low": np.float32(np.finfo(np.float32).min)},
    ),
    Broken(
        "layer norm of primitives",
        "the square overflows, so everything is divided by infinity",
        "(float[1,64] x) => (float[1,64] y)"
        " { mu = ReduceMean<axes=[-1]>(x) d = Sub(x, mu) q = Mul(d, d) v = ReduceMean<axes=[-1]>(q)"
        " e = Add(v, eps) s = Sqrt(e) y = Div(d, s) }",
        lambda: {"x": normal(1, 64, scale=600)},
        lambda: {"eps": np.float32(1e-5)},
    ),
    Broken(
        "long sum",
        "4096 times 32 is 131072",
        "(float[1,4096] x) => (float[1,1] y) { y = ReduceSum(x, ax) }",
        lambda: {"x": np.full((1, 4096), 32, np.float32)},
        lambda: {"ax": np.int64([-1])},
    ),
    Broken(
        "mean of a large map",
        "a running total in half stalls long before 262144 terms are added",
        "(float[1,2,512,512] x) => (float[1,2,1,1] y) { y = ReduceMean<axes=[2,3]>(x) }",
        lambda: {"x": np.random.default_rng(0).random((1, 2, 512, 512), np.float32)},
        emulate="half",
    ),
    Broken(
        "instance norm",
        "the variance 512² overflows inside the operator",
        "(float[1,2,32,32] x) => (float[1,2,32,32] y) { y = InstanceNormalization<epsilon=1e-5>(x, s, b) }",
        lambda: {"x": np.where(np.indices((1, 2, 32, 32)).sum(0) % 2 == 0, 512, -512).astype(np.float32)},
        lambda: {"s": f32(1, 1), "b": f32(0, 0)},
        emulate="half",
    ),
    Broken(
        "L2 normalisation",
        "the norm's squares add up beyond the range",
        "(float[1,128] x) => (float[1,128] y) { q = Mul(x, x) s = ReduceSum(q, ax) n = Sqrt(s) y = Div(x, n) }",
        lambda: {"x": normal(1, 128, scale=400)},
        lambda: {"ax": np.int64([-1])},
    ),
    Broken(
        "softplus by hand",
        "exp(11.1) is beyond the range, log of infinity is infinite",
        "(float[1,4] x) => (float[1,4] y) { e = Exp(x) s = Add(e, one) y = Log(s) }",
        lambda: {"x": f32([1, 8, 11.5, 20])},
        lambda: {"one": np.float32(1)},
    ),
    Broken(
        "scores scaled late",
        "QKᵀ overflows before it is scaled",
        "(float[1,8,64] q, float[1,64,8] k) => (float[1,8,8] y)"
        " { s = MatMul(q, k) t = Mul(s, scale) y = Softmax<axis=-1>(t) }",
        lambda: {"q": normal(1, 8, 64, scale=160, seed=4), "k": normal(1, 64, 8, scale=160, seed=5)},
        lambda: {"scale": np.float32(0.125)},
    ),
    Broken(
        "lost epsilon",
        "1e-12 becomes 0, and 1 / 0 infinite",
        "(float[1,3] x) => (float[1,3] y) { d = Add(x, eps) q = Div(one, d) y = Mul(q, x) }",
        lambda: {"x": f32([0, 1, 2])},
        lambda: {"eps": np.float32(1e-12), "one": np.float32(1)},
    ),
    Broken(
        "floor of a logarithm",
        "the floor 1e-12 becomes 0, its logarithm -inf",
        "(float[1,3] x) => (float[1,3] y) { c = Clip(x, low, high) y = Log(c) }",
        lambda: {"x": f32([0, 1e-9, 0.5])},
        lambda: {"low": np.float32(1e-12), "high": np.float32(1)},
    ),
    Broken(
        "tiny weights",
        "3e-8 becomes twice as much",
        "(float[1,8] x) => (float[1,8] y) { t = MatMul(x, w) y = Mul(t, k) }",
        lambda: {"x": np.ones((1, 8), np.float32)},
        lambda: {"w": np.full((8, 8), 3e-8, np.float32), "k": np.float32(1e4)},
    ),
)
