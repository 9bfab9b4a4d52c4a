"""Without data nothing known to outgrow the range flows into a low product, nor what a logarithm's floor is for."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mpdeploy.verification.api import verify

RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": (np.abs(RNG.normal(size=(16, 8))) * 1e-3).astype(np.float32),
    "k": (np.abs(RNG.normal(size=(8, 4, 1))) * 1e-3).astype(np.float32),
    "two": np.float32(2),
    "big": np.float32(32768),
    "floor": np.float32(1e-10),
    "axis": np.int64([2]),
    "one": np.int64([1]),
}
LARGE = {
    "a square": "p = Mul(x, x)  y = MatMul(p, w)",
    "a power": "p = Pow(x, two)  y = MatMul(p, w)",
    "a large factor": "p = Mul(x, big)  y = MatMul(p, w)",
    "a square, moved": "p = Mul(x, x)  t = Identity(p)  q = Abs(t)  y = MatMul(q, w)",
    "a square in a convolution": "p = Mul(x, x)  s = Reshape(p, shape)  y = Conv(s, k)",
    "a sum of squares of unknown length": """u = Unsqueeze(x, axis)  e = Expand(u, n)
        p = ReduceSumSquare<axes = [2], keepdims = 0>(e)  y = MatMul(p, w)""",
}


@pytest.mark.parametrize("policy", ["safe", "autocast"])
@pytest.mark.parametrize("kind", LARGE)
def test_nothing_known_to_outgrow_the_range_flows_into_a_low_product(workshop, kind, policy):
    # A6: the plan kept the square in FP32 and cast it to FP16 for the product: infinity.
    path = source(workshop, f"g (float[4,16] x, int64[3] n) => (float y) {{ {LARGE[kind]} }}")
    feed = {"x": np.full((4, 16), 400, np.float32), "n": np.int64([4, 16, 20])}
    plan = workshop.plan_of(path, policy=policy)
    assert verify(path, workshop.folder / "made.onnx", [feed]).verdict.passed
    assert "--data would settle it" in plan.notes[0]


@pytest.mark.parametrize("guard", ["Clip(m, floor)", "Max(m, floor)", "Add(m, floor)"])
def test_a_floor_under_a_logarithm_keeps_the_product_that_it_guards(workshop, guard):
    # A6's twin: quiet rows came out at the floor, log(1e-10) = -23.03, instead of -19.
    path = source(workshop, f"g (float[4,16] x) => (float[4,8] y) {{ m = MatMul(x, w)  c = {guard}  y = Log(c) }}")
    quiet = np.float32([[1e-1], [1e-3], [1e-5], [1e-7]]) * np.ones((4, 16), np.float32)
    workshop.plan_of(path)
    assert verify(path, workshop.folder / "made.onnx", [{"x": quiet}]).verdict.passed


BOUNDED = {
    "softmax spelled out": """a = MatMul(x, v)  m = ReduceMax<axes = [1]>(a)  d = Sub(a, m)  e = Exp(d)
        s = ReduceSum(e, one)  q = Div(e, s)  y = MatMul(q, w)""",
    "a root mean square norm": """a = MatMul(x, v)  p = Mul(a, a)  m = ReduceMean<axes = [1]>(p)
        r = Sqrt(m)  q = Div(a, r)  y = MatMul(q, w)""",
    "a gated unit with biases": """a = MatMul(x, v)  b = Add(a, bias)  c = Sigmoid(b)  d = Mul(b, c)
        e = Add(a, bias)  f = Mul(d, e)  y = MatMul(f, w)""",
}


@pytest.mark.parametrize("kind", BOUNDED)
def test_what_only_looks_as_if_it_grew_costs_no_product(workshop, kind):
    extra = {"v": RNG.normal(size=(16, 16)).astype(np.float32) / 4, "bias": RNG.normal(size=16).astype(np.float32)}
    path = source(workshop, f"g (float[4,16] x) => (float[4,8] y) {{ {BOUNDED[kind]} }}", extra)
    plan = workshop.plan_of(path)
    assert {d.format.value for d in plan.decisions if d.op == "MatMul"} == {"fp16"}


def source(workshop, text, extra=None):
    path = workshop.source(text, 17)
    model = onnx.load(path)
    read = {name for node in model.graph.node for name in node.input}
    stored = {**WEIGHTS, "shape": np.int64([1, 4, 16]), **(extra or {})}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in stored.items() if n in read)
    onnx.save(model, path)
    return path
