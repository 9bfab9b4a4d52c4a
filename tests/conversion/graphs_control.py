"""If, Loop and Scan, in each other, with captured values."""

import numpy as np
from onnx import TensorProto

from tests.conversion.graphs import Case, uniform

ROW = {"x": np.float32([[-1, 1, 2, 3]])}
TRUE = {"c": np.array(True)}


F = TensorProto.FLOAT

CASES = [
    Case(
        "If: local weights in one branch, outer ones in the other",
        """float[1,4] x, bool c -> float[1,2] y
        a = Relu(x)
        y = If(c) <then_branch = th () => (float[1,2] t) { [gemm] t = Gemm(a, w1) }, else_branch = el ()
            => (float[1,2] e) { [mm] e = MatMul(a, wo) }>""",
        {**ROW, "c": np.array(False)},
        {"th/w1": uniform(4, 2), "wo": uniform(4, 2, seed=1)},
        low=("gemm", "mm"),
    ),
    Case(
        "If: a branch returns an outer tensor, the other resizes it",
        """float[1,1,2,2] x, bool c -> float[1,1,A,B] y
        a = Mul(x, k)
        y = If(c) <then_branch = th () => (float[1,1,A,B] t) { t = Resize<mode="nearest">(a, "", sc) },
            else_branch = el () => (float[1,1,A,B] e) { e = Identity(a) }>""",
        {"x": uniform(1, 1, 2, 2), **TRUE},
        {"k": 0.5, "th/sc": np.float32([1, 1, 2, 2])},
    ),
    Case(
        "If: a branch's output is an initializer of its own",
        """float[1,2] x, bool c -> float[1,2] y
        a = MatMul(x, w)
        y = If(c) <then_branch = th () => (float[1,2] t) { t = Relu(a) }, else_branch = el ()
            => (float[1,2] k) <float[1,2] k = {3, 4}> { }>""",
        {"x": uniform(1, 2), "c": np.array(False)},
        {"w": uniform(2, 2)},
    ),
    Case(
        "If: a branch's output is a Constant node",
        """float[1,2] x, bool c -> float[1,2] y
        a = MatMul(x, w)
        z = If(c) <then_branch = th () => (float[1,2] t) { t = Relu(a) }, else_branch = el () => (float[1,2] k)
            { k = Constant<value = float[1,2] {3, 4}>() }>
        y = MatMul(z, w)""",
        {"x": uniform(1, 2), "c": np.array(False)},
        {"w": uniform(2, 2)},
        low=("a", "y"),
    ),
    Case(
        "If: a branch returns a huge constant",
        """float[1,2] x, bool c -> float[1,2] y
        a = MatMul(x, w)
        z = If(c) <then_branch = th () => (float[1,2] t) { t = Relu(a) }, else_branch = el () => (float[1,2] k)
            { k = Constant<value = float[1,2] {1e9, 4}>() }>
        y = Mul(z, s)""",
        {"x": uniform(1, 2), "c": np.array(False)},
        {"w": uniform(2, 2), "s": 1e-9},
        low=("a",),
    ),
    Case(
        "If: several outputs, integers among them",
        """float[1,2] x, bool c -> float[1,2] y, int64[1] n, float[1,2] z
        y, n, z = If(c) <then_branch = th () => (float[1,2] t, int64[1] i, float[1,2] u) { t = MatMul(x, w)
            i = Constant<value = int64[1] {1}>() u = Exp(x) }, else_branch = el () => (float[1,2] t,
            int64[1] i, float[1,2] u) { t = Relu(x) i = Constant<value = int64[1] {2}>() u = MatMul(x, w) }>""",
        {"x": uniform(1, 2), **TRUE},
        {"w": uniform(2, 2)},
    ),
    Case(
        "If, If and If in each other, with captures from each level",
        """float[1,2] x, bool c -> float[1,2] y
        a = MatMul(x, w)
        y = If(c) <then_branch = t1 () => (float[1,2] o1) { b = Tanh(a) o1 = If(c) <then_branch = t2 ()
            => (float[1,2] o2) { d = MatMul(b, w) o2 = If(c) <then_branch = t3 () => (float[1,2] o3) {
            e = Add(d, b) f = Add(e, a) [deep] o3 = MatMul(f, w3) }, else_branch = e3 () => (float[1,2] p3) {
            p3 = Identity(a) }> }, else_branch = e2 () => (float[1,2] p2) { p2 = Identity(b) }> },
            else_branch = e1 () => (float[1,2] p1) { p1 = Identity(x) }>""",
        {"x": uniform(1, 2), **TRUE},
        {"w": uniform(2, 2), "t3/w3": uniform(2, 2)},
        low=("a", "d", "deep"),
    ),
    Case(
        "Loop with a float state",
        """float[1] x -> float[1] fin, float[M,1] y
        s0 = Mul(x, k)
        fin, y = Loop(n, t, s0) <body = body (int64 it, bool ci, float[1] s) => (bool co, float[1] so,
            float[1] scan) { so = Add(s, stp) co = Identity(ci) scan = Identity(so) }>""",
        {"x": [1.0]},
        {"k": [0.5], "stp": [0.1], "n": np.int64(5), "t": np.array(True)},
    ),
    Case(
        "Loop around a MatMul with captured weights and activations",
        """float[1,2] x -> float[1,2] fin
        a = MatMul(x, w)
        fin = Loop(n, t, x) <body = body (int64 it, bool ci, float[1,2] s) => (bool co, float[1,2] so) {
            [inner] m = MatMul(s, w) b = Add(m, a) so = Tanh(b) co = Identity(ci) }>""",
        {"x": uniform(1, 2)},
        {"w": uniform(2, 2), "n": np.int64(3), "t": np.array(True)},
        low=("a", "inner"),
    ),
    Case(
        "Loop without a trip count",
        """float x -> float y
        y = Loop("", t, x) <body = body (int64 it, bool ci, float s) => (bool co, float so) { so = Mul(s, g)
            co = Less(so, limit) }>""",
        {"x": np.float32(1)},
        {"t": np.array(True), "g": 1.5, "limit": 50.0},
    ),
    Case(
        "Loop without a condition",
        """float[1,2] x -> float[1,2] y
        y = Loop(n, "", x) <body = body (int64 it, bool ci, float[1,2] s) => (bool co, float[1,2] so) {
            so = MatMul(s, w) co = Identity(ci) }>""",
        {"x": uniform(1, 2)},
        {"n": np.int64(3), "w": uniform(2, 2)},
        low=("so",),
    ),
    Case(
        "Loop of zero iterations",
        """float[1,2] x, int64 n -> float[1,2] y, float[M,1,2] z
        y, z = Loop(n, "", x) <body = body (int64 it, bool ci, float[1,2] s) => (bool co, float[1,2] so,
            float[1,2] sc) { so = MatMul(s, w) co = Identity(ci) sc = Relu(so) }>""",
        {"x": uniform(1, 2), "n": np.int64(0)},
        {"w": uniform(2, 2)},
        low=("so",),
    ),
    Case(
        "Loop whose state is its initial value unchanged, and one that nobody reads",
        """float[1,2] x -> float[1,2] y
        y, dead = Loop(n, "", x, x) <body = body (int64 it, bool ci, float[1,2] s, float[1,2] q) => (bool co,
            float[1,2] so, float[1,2] q) { so = MatMul(s, w) co = Identity(ci) }>""",
        {"x": uniform(1, 2)},
        {"n": np.int64(2), "w": uniform(2, 2)},
    ),
    Case(
        "Loop whose counter becomes a float",
        """float[4] x -> float[4] y
        y = Loop(n, t, x) <body = body (int64 it, bool ci, float[4] s) => (bool co, float[4] so) {
            f = Cast<to=1>(it) so = Add(s, f) co = Identity(ci) }>""",
        {"x": uniform(4)},
        {"n": np.int64(80), "t": np.array(True)},
    ),
    Case(
        "Loop that sums 3000 times",
        """float[1] x -> float[1] y
        y = Loop(n, t, x) <body = body (int64 it, bool ci, float[1] s) => (bool co, float[1] so) { so = Add(s,
            one) co = Identity(ci) }>""",
        {"x": [0.0]},
        {"n": np.int64(3000), "t": np.array(True), "one": 1.0},
    ),
    Case(
        "Scan with two states, a reversed scan input and a reversed scan output",
        """float[1] a, float[1] b, float[4,1] u, float[4,1] v -> float[1] fa, float[1] fb, float[4,1] y
        fa, fb, y = Scan<num_scan_inputs=2, scan_input_directions=[0, 1], scan_output_directions=[1],
            body = body (float[1] sa, float[1] sb, float[1] p, float[1] q) => (float[1] na, float[1] nb,
            float[1] o) { na = Add(sa, p) nb = Mul(sb, q) o = Sub(na, nb) }>(a, b, u, v)""",
        {"a": [1.0], "b": [0.5], "u": uniform(4, 1), "v": uniform(4, 1, seed=1)},
    ),
    Case(
        "Scan around a MatMul",
        """float[1,2] s0, float[3,1,2] u -> float[1,2] fin, float[3,1,2] y
        fin, y = Scan<num_scan_inputs=1, body = body (float[1,2] s, float[1,2] p) => (float[1,2] n,
            float[1,2] o) { [inner] m = MatMul(s, w) a = Add(m, p) n = Tanh(a) o = Identity(n) }>(s0, u)""",
        {"s0": uniform(1, 2), "u": uniform(3, 1, 2)},
        {"w": uniform(2, 2)},
        low=("inner",),
    ),
    Case(
        "Loop, Scan and If in each other",
        """float[1,2] x, float[3,1,2] u, bool c -> float[1,2] y
        a = Exp(x)
        y = Loop(n, t, x) <body = l1 (int64 it, bool ci, float[1,2] s) => (bool co, float[1,2] so) { f,
            sc = Scan<num_scan_inputs=1, body = s1 (float[1,2] q, float[1,2] p) => (float[1,2] qn,
            float[1,2] qo) { r = If(c) <then_branch = t1 () => (float[1,2] o1) { [deep] m = MatMul(q, w)
            o1 = Add(m, a) }, else_branch = e1 () => (float[1,2] p1) { p1 = Identity(p) }> qn = Tanh(r)
            qo = Identity(p) }>(s, u) so = Identity(f) co = Identity(ci) }>""",
        {"x": uniform(1, 2), "u": uniform(3, 1, 2), **TRUE},
        {"w": uniform(2, 2), "n": np.int64(2), "t": np.array(True)},
        low=("deep",),
    ),
]
