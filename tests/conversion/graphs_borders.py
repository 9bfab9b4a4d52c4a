"""Inputs, outputs and names: what is given must come out as it was, under its own name."""

import numpy as np
from onnx import TensorProto

from tests.conversion.graphs import Case, graphs_of, uniform

ROW = {"x": np.float32([[-1, 1, 2, 3]])}
TRUE = {"c": np.array(True)}


def named_alike(*indices):
    def tweak(model):
        for i in indices:
            model.graph.node[i].name = "dup"

    return tweak


def renamed(names):
    def tweak(model):
        for graph in graphs_of(model.graph):
            for node in graph.node:
                node.input[:] = [names.get(n, n) for n in node.input]
                node.output[:] = [names.get(n, n) for n in node.output]
                node.name = names.get(node.name, node.name)
            for value in (*graph.input, *graph.output, *graph.initializer):
                value.name = names.get(value.name, value.name)

    return tweak


def output_again(name):
    def tweak(model):
        model.graph.output.append(next(o for o in model.graph.output if o.name == name))

    return tweak


F = TensorProto.FLOAT

CASES = [
    # --- outputs and inputs
    Case(
        "an output that is also consumed",
        "float[1,4] x -> float[1,4] y, float[1,4] z\n y = Relu(x)\n z = Mul(y, k)",
        ROW,
        {"k": 0.5},
    ),
    Case(
        "an output that is also consumed by a MatMul",
        "float[1,4] x -> float[1,4] y, float[1,2] z\n y = Relu(x)\n z = MatMul(y, w)",
        ROW,
        {"w": uniform(4, 2)},
        low=("z",),
    ),
    Case(
        "a low output that an FP32 operator reads",
        "float[1,4] x -> float[1,2] y, float[1,2] z\n y = MatMul(x, w)\n z = Exp(y)",
        ROW,
        {"w": uniform(4, 2)},
        low=("y",),
    ),
    Case("an input that is an output", "float[1,4] x -> float[1,4] x, float[1,4] y\n y = Relu(x)", ROW),
    Case(
        "an input that is an output and feeds a MatMul",
        "float[1,4] x -> float[1,2] y, float[1,4] x\n y = MatMul(x, w)",
        ROW,
        {"w": uniform(4, 2)},
        low=("y",),
    ),
    Case(
        "an input that nobody reads",
        "float[1,4] x, float[2] unused -> float[1,4] y\n y = Relu(x)",
        {**ROW, "unused": np.zeros(2, np.float32)},
    ),
    Case(
        "an initializer that is an output",
        "float[1,4] x -> float[1,2] y, float[4,2] w\n y = MatMul(x, w)",
        ROW,
        {"w": uniform(4, 2)},
        low=("y",),
    ),
    Case(
        "an initializer beyond the range that is an output",
        "float[1,4] x -> float[1,4] y, float[2] w\n y = Relu(x)",
        ROW,
        {"w": np.float32([1e6, 1])},
    ),
    Case(
        "a Constant node that is an output",
        "float[1,4] x -> float[2] k, float[1,4] y\n k = Constant<value = float[2] {1, 2}>()\n y = Relu(x)",
        ROW,
    ),
    Case(
        "a Constant node that is an output and a factor",
        "float[1,4] x -> float k, float[1,2] y\n k = Constant<value_float=2.0>()\n m = MatMul(x, w)\n y = Mul(m, k)",
        ROW,
        {"w": uniform(4, 2)},
        low=("m",),
    ),
    Case(
        "one value is an output twice",
        "float[1,4] x -> float[1,2] y\n y = MatMul(x, w)",
        ROW,
        {"w": uniform(4, 2)},
        tweak=output_again("y"),
        runs=False,
    ),
    Case(
        "an Identity chain to the output",
        "float[1,4] x -> float[1,2] y\n a = MatMul(x, w)\n b = Identity(a)\n y = Identity(b)",
        ROW,
        {"w": uniform(4, 2)},
        low=("a",),
    ),
    Case(
        "two outputs by Identity of one value",
        "float[1,4] x -> float[1,2] y, float[1,2] z\n a = MatMul(x, w)\n y = Identity(a)\n z = Identity(a)",
        ROW,
        {"w": uniform(4, 2)},
        low=("a",),
    ),
    Case(
        "a Cast makes an output and feeds others",
        "int64[3] i -> float[3] f, float[3] y\n f = Cast<to=1>(i)\n y = Mul(f, k)",
        {"i": np.int64([1, 2, 3])},
        {"k": 0.5},
    ),
    Case(
        "an output that a subgraph captures",
        """float[1,4] x, bool c -> float[1,4] a, float[1,4] y
        a = Mul(x, k)
        y = If(c) <then_branch = th () => (float[1,4] t) { t = Add(a, k) }, else_branch = el ()
            => (float[1,4] e) { e = Relu(a) }>""",
        {**ROW, **TRUE},
        {"k": 0.5},
    ),
    Case(
        "integer inputs only",
        "int64[1,3] i -> float[1,4] y\n e = Gather(tab, i)\n y = ReduceMean<axes=[1], keepdims=0>(e)",
        {"i": np.int64([[1, 2, 3]])},
        {"tab": uniform(10, 4)},
    ),
    Case(
        "symbolic dimensions keep their names",
        "float[batch,seq,4] x -> float[batch,seq,2] y\n a = MatMul(x, w)\n y = Softmax<axis=-1>(a)",
        {"x": uniform(2, 3, 4)},
        {"w": uniform(4, 2)},
        low=("a",),
    ),
    Case("an unknown rank", "float[] x -> float[] y\n y = Relu(x)", {"x": np.float32(-1)}),
    Case(
        "rank 0 stays rank 0",
        "float[2,3] x -> float y\n s = ReduceSum<keepdims=0>(x)\n y = Div(s, k)",
        {"x": uniform(2, 3)},
        {"k": 3.0},
    ),
    Case(
        "rank 0 inputs, weights, products",
        "float a, float b -> float y\n m = Mul(a, k)\n y = Add(m, b)",
        {"a": 2.0, "b": 0.5},
        {"k": 0.5},
    ),
    Case(
        "an initializer of size zero",
        "float[1,4] x -> float[1,4] y\n c = Concat<axis=1>(x, e)\n y = Mul(c, k)",
        ROW,
        {"e": np.zeros((1, 0), np.float32), "k": 0.5},
    ),
    Case(
        "a batch of zero",
        "float[N,4] x -> float[N,2] y\n a = MatMul(x, w)\n y = Softmax<axis=-1>(a)",
        {"x": np.zeros((0, 4), np.float32)},
        {"w": uniform(4, 2)},
        low=("a",),
    ),
    Case(
        "a reduction over an empty axis",
        "float[2,N] x -> float[2] y\n y = ReduceSum<keepdims=0>(x, ax)",
        {"x": np.zeros((2, 0), np.float32)},
        {"ax": np.int64([1])},
    ),
    # --- names
    Case(
        "nodes without names",
        """float[1,8] x -> float[1,2] y
        a = Relu(x)
        t, i = TopK<axis=-1>(a, k)
        u, j = TopK<axis=-1>(t, k)
        y = Mul(u, c)""",
        {"x": uniform(1, 8)},
        {"k": np.int64([2]), "c": 2.0},
        named=False,
    ),
    Case(
        "three nodes share a name",
        "float[1,4] x -> float[1,2] y\n a = Mul(x, k)\n t, i = TopK<axis=-1>(a, q)\n y = Mul(t, k)",
        ROW,
        {"k": 0.5, "q": np.int64([2])},
        tweak=named_alike(0, 1, 2),
    ),
    Case(
        "names that a converter would invent",
        """float[1,4] x -> float[1,2] y, float[1,4] x_fp16
        x_fp16 = Exp(x)
        x_fp32 = Log(x_fp16)
        y_fp16 = MatMul(x, w_fp16)
        w_fp32 = MatMul(x_fp32, w)
        y_bf16 = Add(y_fp16, w_fp32)
        x_bf16 = Identity(y_bf16)
        x_to_fp16 = Softmax<axis=-1>(x_bf16)
        y = MatMul(x_to_fp16, y_fp32)""",
        ROW,
        {"w_fp16": uniform(4, 2), "w": uniform(4, 2), "y_fp32": uniform(2, 2)},
    ),
    Case(
        "unicode, slashes, spaces, very long names",
        "float[1,4] x -> float[1,2] y\n a = Relu(x)\n b = MatMul(a, w)\n y = Softmax<axis=-1>(b)",
        {"入力/x:0": ROW["x"]},
        {"w": uniform(4, 2)},
        tweak=renamed(
            {
                "x": "入力/x:0",
                "a": "/layers.0/ein Wert mit Leerzeichen",
                "w": "w" * 3000,
                "y": "ausgabe⟶1",
                "b": "b\n/;'\"",
            }
        ),
    ),
    Case(
        "a node's name equals a value's name",
        "float[1,4] x -> float[1,2] y\n[x] a = Relu(x)\n[a] y = MatMul(a, w)",
        ROW,
        {"w": uniform(4, 2)},
    ),
    Case(
        "subgraph values have equal names in sibling branches",
        """float[1,4] x, bool c -> float[1,2] y
        a = Relu(x)
        y = If(c) <then_branch = th () => (float[1,2] t) <float[4,2] w = {1,2,3,4,5,6,7,8}> { m = MatMul(a, w)
            t = Mul(m, k) }, else_branch = el () => (float[1,2] t) <float[4,2] w = {8,7,6,5,4,3,2,1}> {
            m = MatMul(a, w) t = Mul(m, k) }>""",
        {**ROW, **TRUE},
        {"k": 0.5},
    ),
    Case(
        "a branch names its values as a converter would name the outer ones",
        """float[1,4] x, bool c -> float[1,2] y
        a = Exp(x)
        y = If(c) <then_branch = th () => (float[1,2] t) { a_fp16 = MatMul(a, w) a_fp32 = Relu(a_fp16)
            a_bf16 = Exp(a_fp32) t = Log(a_bf16) }, else_branch = el () => (float[1,2] u) { u = MatMul(a, w) }>""",
        {**ROW, **TRUE},
        {"w": uniform(4, 2)},
    ),
]
