"""Random ONNX graphs of float arithmetic, with data for them: seeded, valid, finite in FP32.

A graph grows operator by operator over a pool of values whose shapes are known from a run: products with weights of any
size, norms fused and spelled out, masks, logarithms over floors, gathers, recurrences, quantised pairs, branches and
loops.  Scales are drawn from 1e-6 to 1e3, so that every limit of the low formats is met.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
import onnx
import onnx.checker
from numpy.random import Generator
from onnx import TensorProto, helper, numpy_helper

Arrays = dict[str, np.ndarray]
OPSETS = (11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23)
_FEEDS = 2
_UNARY = (
    "Relu Sigmoid Tanh Abs Neg Erf Softplus Elu LeakyRelu HardSigmoid Identity Sin Cos Floor Ceil Sign Atan".split()
)
_BY_OPSET = {"HardSwish": 14, "Gelu": 20, "Mish": 18, "Celu": 12}
_REDUCTIONS = "ReduceMean ReduceMax ReduceMin ReduceL2 ReduceSumSquare ReduceL1 ReduceLogSumExp ReduceSum".split()
_AXES_AS_INPUT = {name: 18 for name in _REDUCTIONS} | {"ReduceSum": 13}


@dataclass(frozen=True)
class Sample:
    """A model with feeds on which every value that it gives is finite."""

    model: onnx.ModelProto
    feeds: tuple[Arrays, ...]


@dataclass
class Builder:
    """A graph that grows; ``pool`` holds the floats made so far with their shapes, the batch as 0."""

    random: Generator
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    pool: dict[str, tuple[int, ...]] = field(default_factory=dict)
    count: int = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def scale(self) -> float:
        """A size for numbers: usual, small, or large."""
        return float(self.random.choice([1, 1, 1, 1, 0.1, 1e-3, 1e-6, 30, 1e3]))

    def stored(self, array: Any, dtype: Any = np.float32) -> str:
        name = self.name("w")
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def drawn(self, *shape: int, scale: float | None = None) -> str:
        return self.stored(self.random.normal(size=shape) * (self.scale() if scale is None else scale))

    def add(self, op: str, inputs: list[str], outputs: int = 1, **attributes: Any) -> list[str]:
        names = [self.name(op.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, self.name(f"node_{op}"), **attributes))
        return names

    def one(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.add(op, list(inputs), **attributes)[0]

    def pick(self, rank: int | None = None) -> str | None:
        """A value of the pool, a late one more likely, of a rank if one is asked for."""
        fitting = [name for name, shape in self.pool.items() if rank is None or len(shape) == rank]
        if not fitting:
            return None
        late = fitting[-4:]
        return str(self.random.choice(late if self.random.random() < 0.7 else fitting))


Step = Callable[[Builder], Mapping[str, tuple[int, ...]] | None]
"""Adds operators and returns what they give with its shapes; None where nothing in the pool fits."""


def _matmul(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    x = b.pick()
    if x is None or len(b.pool[x]) < 2:
        return None
    *rest, k = b.pool[x]
    n = int(b.random.choice([4, 8, 16]))
    spread = b.scale() / np.sqrt(k)
    if len(rest) == 1 and b.random.random() < 0.4:
        y = b.one("Gemm", x, b.drawn(n, k, scale=spread), b.drawn(n), transB=1, alpha=float(b.random.choice([1, 0.5])))
    else:
        y = b.one("MatMul", x, b.drawn(k, n, scale=spread))
    return {y: (*rest, n)}


def _conv(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    x = b.pick(4)
    if x is None:
        return None
    n, c, h, w = b.pool[x]
    m, bias = int(b.random.choice([4, 8])), b.random.random() < 0.5
    kind = b.random.integers(0, 3)
    if kind == 0:
        kernel = b.drawn(m, c, 3, 3, scale=b.scale() / np.sqrt(9 * c))
        y = b.one("Conv", x, kernel, *([b.drawn(m)] if bias else []), pads=[1, 1, 1, 1])
        return {y: (n, m, h, w)}
    if kind == 1:
        y = b.one("Conv", x, b.drawn(c, 1, 3, 3, scale=1 / 3), pads=[1, 1, 1, 1], group=c)
        return {y: (n, c, h, w)}
    if h * w > 256:
        return None
    y = b.one("ConvTranspose", x, b.drawn(c, m, 2, 2, scale=0.5), strides=[2, 2])
    return {y: (n, m, 2 * h, 2 * w)}


def _unary(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    x = b.pick()
    if x is None:
        return None
    newer = [op for op, since in _BY_OPSET.items() if since <= b.opset]
    return {b.one(str(b.random.choice([*_UNARY, *newer])), x): b.pool[x]}


def _guarded(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    """Functions that need a guard: logarithms, roots, quotients, powers, exponentials."""
    x = b.pick()
    if x is None:
        return None
    floor = b.stored(float(b.random.choice([1e-10, 1e-8, 1e-6, 1e-5, 1e-3, 0.1])))
    size = b.one("Abs", x)
    kind = b.random.integers(0, 7)
    if kind == 0:
        y = b.one("Log", b.one("Add", size, floor))
    elif kind == 1:
        y = b.one("Log", b.one("Max", size, floor))
    elif kind == 2:
        y = b.one("Sqrt", b.one("Add", b.one("Mul", x, x), floor))
    elif kind == 3:
        y = b.one("Div", x, b.one("Add", size, floor))
    elif kind == 4:
        y = b.one("Pow", size, b.stored(float(b.random.choice([2, 3, 0.5]))))
    elif kind == 5:
        y = b.one("Exp", b.one("Clip", x, b.stored(-20.0), b.stored(float(b.random.choice([1, 10, 20])))))
    else:
        y = b.one("Reciprocal", b.one("Add", size, b.stored(0.5)))
    return {y: b.pool[x]}


def _binary(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    x = b.pick()
    if x is None:
        return None
    same = [name for name, shape in b.pool.items() if shape == b.pool[x]]
    op = str(b.random.choice(["Add", "Sub", "Mul", "Max", "Min"]))
    if b.random.random() < 0.5 and len(same) > 1:
        return {b.one(op, x, str(b.random.choice(same))): b.pool[x]}
    other = b.drawn(b.pool[x][-1]) if b.random.random() < 0.5 and b.pool[x][-1] else b.stored(b.scale())
    return {b.one(op, x, other): b.pool[x]}


def _norm(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    x = b.pick()
    if x is None or not b.pool[x][-1]:
        return None
    shape, epsilon = b.pool[x], float(b.random.choice([1e-5, 1e-6, 1e-8, 1e-12]))
    n = shape[-1]
    kind = b.random.integers(0, 4)
    if kind == 0 and b.opset >= 17:
        return {b.one("LayerNormalization", x, b.drawn(n, scale=1), b.drawn(n), epsilon=epsilon, axis=-1): shape}
    if kind == 1 and len(shape) == 4:
        c = shape[1]
        var = b.stored(np.abs(b.random.normal(size=c)) * b.scale() + 1e-3)
        inputs = (x, b.drawn(c, scale=1), b.drawn(c), b.drawn(c), var)
        return {b.one("BatchNormalization", *inputs, epsilon=epsilon): shape}
    if kind == 2 and len(shape) == 4 and shape[2] * shape[3] > 1:
        c = shape[1]
        return {b.one("InstanceNormalization", x, b.drawn(c, scale=1), b.drawn(c), epsilon=max(epsilon, 1e-6)): shape}
    mean = _reduced(b, "ReduceMean", x, keep=True)
    centred = b.one("Sub", x, mean)
    squared = b.one("Mul", centred, centred) if kind else b.one("Pow", centred, b.stored(2.0))
    variance = b.one("Add", _reduced(b, "ReduceMean", squared, keep=True), b.stored(epsilon))
    return {b.one("Mul", b.one("Div", centred, b.one("Sqrt", variance)), b.drawn(n, scale=1)): shape}


def _reduced(b: Builder, op: str, x: str, *, keep: bool) -> str:
    if b.opset >= _AXES_AS_INPUT[op]:
        return b.one(op, x, b.stored([-1], np.int64), keepdims=int(keep))
    return b.one(op, x, axes=[-1], keepdims=int(keep))


def _reduce(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    x = b.pick()
    if x is None or len(b.pool[x]) < 2 or not b.pool[x][-1]:
        return None
    op = str(b.random.choice(_REDUCTIONS))
    if op == "ReduceLogSumExp":
        return {_reduced(b, op, b.one("Tanh", x), keep=True): (*b.pool[x][:-1], 1)}
    return {_reduced(b, op, x, keep=True): (*b.pool[x][:-1], 1)}


def _attention(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    x = b.pick(3)
    if x is None:
        return None
    n, t, k = b.pool[x]
    q, key, v = (b.one("MatMul", x, b.drawn(k, 8, scale=b.scale() / np.sqrt(k))) for _ in range(3))
    scores = b.one("Div", b.one("MatMul", q, b.one("Transpose", key, perm=[0, 2, 1])), b.stored(np.sqrt(8)))
    if b.random.random() < 0.6:
        far = float(b.random.choice([-1e4, -1e9, float(np.finfo(np.float32).min)]))
        scores = b.one("Add", scores, b.stored(np.triu(np.full((t, t), far), 1)))
    return {b.one("MatMul", b.one("Softmax", scores, axis=-1), v): (n, t, 8)}


def _shape(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    x = b.pick()
    if x is None:
        return None
    shape = b.pool[x]
    kind = b.random.integers(0, 7)
    if kind == 0 and len(shape) > 2:
        perm = [0, *(1 + b.random.permutation(len(shape) - 1)).tolist()]
        return {b.one("Transpose", x, perm=perm): tuple(shape[i] for i in perm)}
    if kind == 1 and len(shape) == 4:
        return {b.one("Flatten", x): (shape[0], reduce(operator.mul, shape[1:]))}
    if kind == 2 and len(shape) == 4:
        n, c, h, w = shape
        return {b.one("Reshape", x, b.stored([0, c, h * w], np.int64)): (n, c, h * w)}
    if kind == 3:
        other = b.pick(len(shape))
        if other is not None and b.pool[other][:-1] == shape[:-1]:
            return {b.one("Concat", x, other, axis=-1): (*shape[:-1], shape[-1] + b.pool[other][-1])}
    if kind == 4 and shape[-1] > 2:
        half = shape[-1] // 2
        ends = (b.stored([0], np.int64), b.stored([half], np.int64), b.stored([len(shape) - 1], np.int64))
        return {b.one("Slice", x, *ends): (*shape[:-1], half)}
    if kind == 5 and len(shape) == 4 and shape[2] * shape[3] < 200:
        n, c, h, w = shape
        region = "" if b.opset >= 13 else b.stored([])
        mode = str(b.random.choice(["nearest", "linear"]))
        return {b.one("Resize", x, region, b.stored([1, 1, 2, 2]), mode=mode): (n, c, 2 * h, 2 * w)}
    if kind == 6 and shape[-1]:
        picked = b.random.integers(0, shape[-1], 3)
        return {b.one("Gather", x, b.stored(picked, np.int64), axis=len(shape) - 1): (*shape[:-1], 3)}
    return None


def _pool(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    x = b.pick(4)
    if x is None or min(b.pool[x][2:]) < 2:
        return None
    n, c, h, w = b.pool[x]
    if b.random.random() < 0.3:
        return {b.one("GlobalAveragePool", x): (n, c, 1, 1)}
    op = str(b.random.choice(["MaxPool", "AveragePool"]))
    return {b.one(op, x, kernel_shape=[2, 2], strides=[2, 2]): (n, c, h // 2, w // 2)}


def _choice(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    """Decisions: comparisons, the largest few, indices, whole numbers."""
    x = b.pick()
    if x is None or not b.pool[x][-1]:
        return None
    shape = b.pool[x]
    kind = b.random.integers(0, 4)
    if kind == 0:
        limit = b.one("Greater", x, b.stored(0.0))
        return {b.one("Where", limit, x, b.stored(float(b.random.choice([0, -1e4, 1e-6])))): shape}
    if kind == 1:
        k = min(2, shape[-1])
        values, _ = b.add("TopK", [x, b.stored([k], np.int64)], 2, axis=-1)
        return {values: (*shape[:-1], k)}
    if kind == 2 and len(shape) > 1:
        table = b.drawn(16, 4)
        index = b.one("Cast", b.one("Clip", b.one("Abs", x), b.stored(0.0), b.stored(15.0)), to=TensorProto.INT64)
        return {b.one("Gather", table, index): (*shape, 4)} if len(shape) < 4 else None
    return {b.one("CumSum", x, b.stored(len(shape) - 1, np.int64)): shape}


def _recurrent(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    x = b.pick(3)
    if x is None or b.pool[x][1] > 16:
        return None
    n, t, k = b.pool[x]
    gates, op = (4, "LSTM") if b.random.random() < 0.5 else (3, "GRU")
    turned = b.one("Transpose", x, perm=[1, 0, 2])
    w, r = (b.drawn(1, gates * 4, size, scale=1 / np.sqrt(size)) for size in (k, 4))
    bias = b.drawn(1, 2 * gates * 4, scale=0.1)
    y = b.one(op, turned, w, r, bias, hidden_size=4)
    axes = b.stored([1], np.int64)
    flat = b.one("Squeeze", y, axes) if b.opset >= 13 else b.one("Squeeze", y, axes=[1])
    return {b.one("Transpose", flat, perm=[1, 0, 2]): (n, t, 4)}


def _quantised(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    x = b.pick()
    if x is None:
        return None
    scale, zero = b.stored(float(b.random.choice([0.02, 0.1]))), b.stored(0, np.int8)
    return {b.one("DequantizeLinear", b.one("QuantizeLinear", x, scale, zero), scale, zero): b.pool[x]}


def _branch(b: Builder) -> Mapping[str, tuple[int, ...]] | None:
    """An If on the data, a Loop that repeats, whose bodies hold products."""
    x = b.pick()
    if x is None or len(b.pool[x]) < 2 or not b.pool[x][-1]:
        return None
    shape = b.pool[x]
    n = shape[-1]
    weight = b.drawn(n, n, scale=b.scale() / n)
    out, free = helper.make_tensor_value_info, [None] * len(shape)
    if b.random.random() < 0.5:
        axes = {} if b.opset >= 13 else {"axes": list(range(len(shape)))}
        every = [b.stored(list(range(len(shape))), np.int64)] if b.opset >= 13 else []
        total = b.one("ReduceSum", x, *every, keepdims=0, **axes)
        condition = b.one("Greater", total, b.stored(0.0))
        bodies = []
        for op in ("MatMul", "Tanh"):
            given, name = [x, weight] if op == "MatMul" else [x], b.name("body")
            node = helper.make_node(op, given, [name], b.name("inner"))
            bodies.append(helper.make_graph([node], b.name("branch"), [], [out(name, TensorProto.FLOAT, free)]))
        return {b.one("If", condition, then_branch=bodies[0], else_branch=bodies[1]): shape}
    i, go, state, made, again, result = (b.name(stem) for stem in ("i", "go", "state", "made", "again", "result"))
    body = helper.make_graph(
        [
            helper.make_node("MatMul", [state, weight], [made], b.name("inner")),
            helper.make_node("Tanh", [made], [result], b.name("inner")),
            helper.make_node("Identity", [go], [again], b.name("inner")),
        ],
        b.name("body"),
        [out(i, TensorProto.INT64, []), out(go, TensorProto.BOOL, []), out(state, TensorProto.FLOAT, free)],
        [out(again, TensorProto.BOOL, []), out(result, TensorProto.FLOAT, free)],
    )
    trips, start = b.stored(3, np.int64), b.stored(True, np.bool_)
    return {b.one("Loop", trips, start, x, body=body): shape}


_STEPS: tuple[tuple[Step, float], ...] = (
    (_matmul, 4), (_conv, 4), (_unary, 3), (_guarded, 3), (_binary, 3), (_norm, 3), (_reduce, 1.5), (_attention, 2),
    (_shape, 3), (_pool, 1), (_choice, 1.5), (_recurrent, 1), (_quantised, 1), (_branch, 1),
)  # fmt: skip


def grow(seed: tuple[int, ...]) -> tuple[onnx.ModelProto, tuple[Arrays, ...]]:
    """Return a random model and feeds for it; neither is known to be valid yet."""
    random = np.random.default_rng(seed)
    b = Builder(random, int(random.choice(OPSETS)))
    rank = int(random.choice([2, 3, 4]))
    inner = {2: (8,), 3: (6, 8), 4: (3, 8, 8)}[rank]
    b.pool["x"] = (0, *inner)
    weights = np.array([weight for _, weight in _STEPS])
    for _ in range(int(random.integers(3, 16))):
        step = _STEPS[int(random.choice(len(_STEPS), p=weights / weights.sum()))][0]
        made = step(b)
        if made is not None:
            b.pool.update(made)
    read = {name for node in b.nodes for name in node.input}
    leaves = [name for name in b.pool if name not in read and name != "x"][-3:] or [list(b.pool)[-1]]
    graph = helper.make_graph(
        b.nodes,
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *inner])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * len(b.pool[name])) for name in leaves],
        b.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", b.opset)], ir_version=8)
    size = float(random.choice([1, 1, 0.05, 20]))
    feeds = tuple(
        {"x": (random.normal(size=(int(random.integers(1, 5)), *inner)) * size).astype(np.float32)}
        for _ in range(_FEEDS)
    )
    return model, feeds
