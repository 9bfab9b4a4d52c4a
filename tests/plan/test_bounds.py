"""Bounds are never wrong: what an operator computes from values within its inputs' bounds lies within its own."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from mpdeploy.numerics.statistics import stats_of
from mpdeploy.plan import ranges

UNARY = [
    "Relu", "Neg", "Abs", "Exp", "Sqrt", "Sigmoid", "Tanh", "Erf", "Sin", "Cos", "Softplus", "Floor", "Ceil", "Round",
    "Reciprocal", "Softsign", "HardSigmoid", "HardSwish", "Elu", "Selu", "Celu", "Mish", "LeakyRelu", "Sign", "Atan",
    "Sinh", "Asinh", "Identity", "Log",
]  # fmt: skip
GRAPHS = {
    **{op: f"t = {op}(x)" for op in UNARY},
    "Add": "t = Add(x, y)",
    "Sub": "t = Sub(x, y)",
    "Mul": "t = Mul(x, y)",
    "Div": "t = Div(x, y)",
    "Square": "t = Mul(x, x)",
    "Max": "t = Max(x, y)",
    "Min": "t = Min(x, y)",
    "Concat": "t = Concat<axis = 0>(x, y)",
    "Where": "c = Less(x, y)  t = Where(c, x, y)",
    "Pow2": "two = Constant<value = float {2.0}>()  t = Pow(x, two)",
    "Pow3": "three = Constant<value = float {3.0}>()  t = Pow(x, three)",
    "Root": "a = Abs(x)  half = Constant<value = float {0.5}>()  t = Pow(a, half)",
    "Clip": "lo = Constant<value = float {-2.0}>()  hi = Constant<value = float {3.0}>()  t = Clip(x, lo, hi)",
    "Softmax": "t = Softmax<axis = -1>(x)",
    "LogSoftmax": "t = LogSoftmax<axis = -1>(x)",
    "ReduceSum": "t = ReduceSum<keepdims = 1>(x)",
    "ReduceMean": "t = ReduceMean<keepdims = 1>(x)",
    "ReduceL1": "t = ReduceL1<keepdims = 1>(x)",
    "ReduceL2": "t = ReduceL2<keepdims = 1>(x)",
    "ReduceSumSquare": "t = ReduceSumSquare<keepdims = 1>(x)",
    "ReduceMax": "t = ReduceMax<keepdims = 1>(x)",
    "CumSum": "zero = Constant<value = int64 {0}>()  t = CumSum(x, zero)",
    "Shifted": "m = ReduceMax<keepdims = 1>(x)  t = Sub(x, m)",
    "Mod": "t = Mod<fmod = 1>(x, y)",
    "Pad": "p = Constant<value = int64[2] {1, 2}>()  v = Constant<value = float {-9.0}>()  t = Pad(x, p, v)",
    "LayerNormalization": "g = Constant<value = float[4] {1.0, -2.0, 0.5, 3.0}>()  t = LayerNormalization(x, g)",
}


def loaded(text):
    source = f'<ir_version: 8, opset_import: ["" : 18]> g (float[4] x, float[4] y) => (t) {{ {text} }}'
    return onnx.parser.parse_model(source.replace("(t)", "(float[N] t)"))


def bounds_of_result(proto, feed, margin=1.0):
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    measured = {name: stats_of(array) for name, array in feed.items()}
    known = ranges.analyse(model, {}, measured, 512.0, margin)
    return known[model.graph.outputs[0]]


def numbers(low, high):
    one = st.floats(low, high, width=32, allow_subnormal=False)
    return st.lists(one, min_size=4, max_size=4).map(lambda xs: np.array(xs, np.float32))


@pytest.mark.parametrize("name", GRAPHS)
@given(x=st.one_of(numbers(-50, 50), numbers(0.015625, 8), numbers(-8, -0.015625)), y=numbers(-20, 20))
@settings(max_examples=40, deadline=None)
def test_results_lie_within_their_bounds(name, x, y):
    proto = loaded(GRAPHS[name])
    with np.errstate(all="ignore"):
        result = ReferenceEvaluator(proto).run(None, {"x": x, "y": y})[0].astype(np.float64)
    bounds = bounds_of_result(proto, {"x": x, "y": y})
    finite = result[np.isfinite(result)]
    slack = 1e-5 * max(1.0, float(np.abs(finite).max(initial=0.0)))
    assert (finite >= bounds.low - slack).all()
    assert (finite <= bounds.high + slack).all()
    if bounds.integral:
        assert (finite == np.rint(finite)).all()


@given(low=st.floats(-1e6, 1e6), size=st.floats(0, 1e6), margin=st.floats(1, 10))
def test_measured_bounds_hold_what_was_measured(low, size, margin):
    x = np.array([low, low + size], np.float32)
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[2] x) => (float[2] t) { t = Identity(x) }'
    )
    bounds = bounds_of_result(proto, {"x": x}, margin)
    assert bounds.low <= x.min()
    assert bounds.high >= x.max()


def test_a_margin_widens_but_not_beyond_proof():
    proto = loaded("s = Sigmoid(x)  t = Identity(s)")
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto))
    measured = {"x": stats_of(np.float32([-3, 3])), "s": stats_of(np.float32([0.1, 0.9]))}
    known = ranges.analyse(model, {}, measured, 512.0, 4.0)
    sigmoid = known[model.graph.node(0).outputs[0]]
    assert (round(sigmoid.low, 6), sigmoid.high) == (0.025, 1.0)


def test_what_nothing_bounds_is_assumed_and_growth_shows():
    proto = loaded("a = MatMul(x, y)  t = Mul(a, a)")
    bounds = bounds_of_result(proto, {})
    assert bounds.assumed
    assert bounds.high == 512.0**2
