"""Sequences, optionals, local functions, operators of unknown domains."""

import numpy as np
from onnx import TensorProto, helper

from tests.conversion.graphs import Case, normal, uniform

ROW = {"x": np.float32([[-1, 1, 2, 3]])}
TRUE = {"c": np.array(True)}


def value_info(**types):
    def tweak(model):
        for name, (kind, shape) in types.items():
            model.graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))

    return tweak


F = TensorProto.FLOAT

CASES = [
    # --- containers
    Case(
        "a sequence of tensors",
        """float[2,3] x -> float[1,3] y
        r = Relu(x)
        s = SplitToSequence<axis=0, keepdims=1>(r)
        y = SequenceAt(s, z)""",
        {"x": uniform(2, 3)},
        {"z": np.int64(1)},
    ),
    Case(
        "a sequence that grows, and is joined for a MatMul",
        """float[1,2] x -> float[1,2] y
        a = MatMul(x, w)
        s = SequenceConstruct(a, x)
        t = SequenceInsert(s, a)
        j = ConcatFromSequence<axis=0>(t)
        m = ReduceMean<axes=[0], keepdims=1>(j)
        y = MatMul(m, w)""",
        {"x": uniform(1, 2)},
        {"w": uniform(2, 2)},
        low=("a", "y"),
    ),
    Case(
        "an empty sequence with a dtype, filled by a Loop",
        """float[1,2] x -> float[M,2] y
        e = SequenceEmpty<dtype=1>()
        s = Loop(n, "", e) <body = body (int64 it, bool ci, seq(float[1,2]) q) => (bool co, seq(float[1,2]) qo)
            { m = MatMul(x, w) qo = SequenceInsert(q, m) co = Identity(ci) }>
        y = ConcatFromSequence<axis=0>(s)""",
        {"x": uniform(1, 2)},
        {"w": uniform(2, 2), "n": np.int64(3)},
        low=("m",),
    ),
    Case(
        "a sequence that comes out of an If",
        """float[2,3] x, bool c -> float[1,3] y
        s = If(c) <then_branch = th () => (seq(float[1,3]) t) { t = SplitToSequence<axis=0, keepdims=1>(x) },
            else_branch = el () => (seq(float[1,3]) e) { r = Exp(x) e = SplitToSequence<axis=0,
            keepdims=1>(r) }>
        y = SequenceAt(s, z)""",
        {"x": uniform(2, 3), **TRUE},
        {"z": np.int64(1)},
    ),
    Case(
        "a sequence as the model's output",
        "float[2,3] x -> seq(float[1,3]) y\n m = MatMul(x, w)\n y = SplitToSequence<axis=0, keepdims=1>(m)",
        {"x": uniform(2, 3)},
        {"w": uniform(3, 3)},
        low=("m",),
    ),
    Case(
        "an optional through an If",
        """float[2] x, bool c -> float[2] y
        o = If(c) <then_branch = th () => (optional(float[2]) t) { r = Relu(x) t = Optional(r) },
            else_branch = el () => (optional(float[2]) e) { e = Optional(x) }>
        g = OptionalGetElement(o)
        y = Mul(g, k)""",
        {"x": np.float32([1, -1]), **TRUE},
        {"k": 2.0},
        opset=18,
    ),
    # --- functions
    Case(
        "a local function with an attribute reference",
        "float[1,4] x -> float[1,2] y\n m = fn.dense<gain=0.5>(x, w)\n y = Relu(m)",
        ROW,
        {"w": uniform(4, 2)},
        domains={"fn": 1},
        functions="""<domain: "fn", opset_import: ["" : 17]>
        dense <gain: float = 1.0> (p, q) => (r) { c = Constant<value_float: float = @gain>() d = MatMul(p, q)
            r = Mul(d, c) }""",
    ),
    Case(
        "functions within functions, used twice",
        "float[1,2] x -> float[1,2] y\n a = fn.outer(x, w)\n y = fn.outer(a, w)",
        {"x": uniform(1, 2)},
        {"w": uniform(2, 2)},
        domains={"fn": 1},
        functions="""<domain: "fn", opset_import: ["" : 17, "fn" : 1]>
        outer (p, q) => (r) { i = fn.inner(p, q) r = Exp(i) }
        <domain: "fn", opset_import: ["" : 17]>
        inner (p, q) => (r) { m = MatMul(p, q) r = Neg(m) }""",
    ),
    Case(
        "a function named like a standard operator",
        "float[1,2] x -> float[1,2] y\n a = fn.Relu(x)\n y = Relu(a)",
        {"x": uniform(1, 2, low=-1)},
        domains={"fn": 1},
        functions='<domain: "fn", opset_import: ["" : 17]>\nRelu (p) => (r) { r = Neg(p) }',
    ),
    Case(
        "a function inside a branch",
        """float[1,2] x, bool c -> float[1,2] y
        y = If(c) <then_branch = th () => (float[1,2] t) { t = fn.f(x, w) }, else_branch = el ()
            => (float[1,2] e) { e = Relu(x) }>""",
        {"x": uniform(1, 2), **TRUE},
        {"w": uniform(2, 2)},
        domains={"fn": 1},
        functions='<domain: "fn", opset_import: ["" : 17]>\nf (p, q) => (r) { r = MatMul(p, q) }',
    ),
    Case(
        "a function with a hazard inside",
        "float[1,64] x -> float[1,64] y\n y = fn.norm(x)",
        {"x": normal(1, 64, scale=600)},
        domains={"fn": 1},
        functions="""<domain: "fn", opset_import: ["" : 17]>
        norm (p) => (r) { q = Mul(p, p) m = ReduceMean<axes=[-1], keepdims=1>(q) s = Sqrt(m) r = Div(p, s) }""",
    ),
    Case(
        "a function with an optional input left out",
        'float[1,4] x -> float[1,4] y\n y = fn.lim(x, "", hi)',
        ROW,
        {"hi": 1.0},
        domains={"fn": 1},
        functions='<domain: "fn", opset_import: ["" : 17]>\nlim (p, lo, hi) => (r) { r = Clip(p, lo, hi) }',
    ),
    # --- domains
    Case(
        "an unknown operator in the middle, its domain listed first",
        "float[N,4] x -> float[N,4] y\n a = Relu(x)\n b = acme.Mystery(a)\n y = Mul(b, k)",
        ROW,
        {"k": 0.5},
        domains={"acme": 1},
        runs=False,
    ),
    Case(
        "an unknown operator between matrix products",
        "float[1,4] x -> float[1,2] y\n a = MatMul(x, w)\n b = acme.Mystery<level=3>(a)\n y = MatMul(b, v)",
        ROW,
        {"w": uniform(4, 4), "v": uniform(4, 2)},
        domains={"acme": 1},
        runs=False,
        low=("a",),
    ),
    Case(
        "an unknown operator with declared result types",
        "float[1,4] x -> float[1,2] y\n a = MatMul(x, w)\n b = acme.Mystery(a)\n y = MatMul(b, v)",
        ROW,
        {"w": uniform(4, 4), "v": uniform(4, 2)},
        domains={"acme": 1},
        runs=False,
        low=("a", "y"),
        tweak=value_info(b=(F, [1, 4])),
    ),
    Case(
        "an unknown operator that reads a weight shared with a MatMul",
        "float[1,4] x -> float[1,4] y, float[4,4] z\n y = MatMul(x, w)\n z = acme.Mystery(w)",
        ROW,
        {"w": uniform(4, 4)},
        domains={"acme": 1},
        runs=False,
        low=("y",),
    ),
    Case(
        "an unknown operator whose subgraph captures a value and a weight",
        """float[1,4] x -> float[1,4] y, float[1,4] z
        a = MatMul(x, w)
        y = acme.Repeat<body = b () => (float[1,4] o) { o = Mul(a, k) }>(x)
        z = Mul(a, k)""",
        ROW,
        {"w": uniform(4, 4), "k": 0.5},
        domains={"acme": 1},
        runs=False,
        low=("a",),
    ),
]
