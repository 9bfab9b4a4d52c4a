"""Stricter sums: running totals that are rounded while an operator adds, as kernels with half accumulators do.

By default the emulator adds in float32, as tensor cores do.  In a stricter mode a sum of K products is cut into
chunks; each chunk is summed in float32 and added to a running total that is rounded to the operator's format after
every chunk.  In the graph: the partial sums of all chunks at once, then a Scan that adds and rounds.
"""

import math
from collections.abc import Sequence
from enum import Enum

import onnx_ir as ir

from mpdeploy.graph.scope import all_graphs
from mpdeploy.runtime import norms
from mpdeploy.runtime.nodes import Nodes

OPSET = 18  # the forms of Split, Pad and the reductions that are written here
_LOW = frozenset({int(ir.DataType.FLOAT16), int(ir.DataType.BFLOAT16)})


class Accumulation(Enum):
    """How sums inside low-precision operators add up; the number is how many terms are summed between roundings."""

    FLOAT32 = 0
    CHUNKED = 128
    HALF = 16


def accumulate_strictly(twin: ir.Model, mode: Accumulation) -> int:
    """Rewrite the sums of a float32 twin (see ``runtime.twin``) of opset 18 or newer, in place.

    Matrix products, convolutions of one group, ReduceSum, ReduceMean and GlobalAveragePool whose number of terms is
    known are rewritten; with ``HALF`` also InstanceNormalization, LayerNormalization and RMSNormalization, whose every
    step is rounded then (see ``runtime.norms``).  Returns how many of these operators are left in float32, for want
    of a known size.
    """
    left = 0
    for graph in list(all_graphs(twin)):
        for node in list(graph):
            target = _rounded_to(node)
            if node.domain or target is None:
                continue
            nodes = Nodes(graph, node)
            totals = _Totals(nodes, mode.value, target)
            if node.op_type in _SUMS:
                total = _SUMS[node.op_type](node, nodes, totals)
            elif node.op_type in _NORMS and mode is Accumulation.HALF:
                total = _NORMS[node.op_type](node, nodes, totals.rounded)
            else:
                continue
            if total is None:
                left += 1
                continue
            node.outputs[0].replace_all_uses_with(total)
            graph.remove(node, safe=True)
    return left


def _rounded_to(node: ir.Node) -> int | None:
    """The low type that the twin rounds a node's result to; None if it stays float32."""
    users = [user for user, _ in node.outputs[0].uses()] if node.outputs else []
    if len(users) != 1 or users[0].op_type != "Cast" or node.outputs[0].is_graph_output():
        return None
    to = users[0].attributes["to"].as_int()
    return to if to in _LOW else None


class _Totals:
    """Adds up the partial sums along axis 0, rounding after every step."""

    def __init__(self, nodes: Nodes, chunk: int, target: int) -> None:
        self._nodes, self.chunk, self._target = nodes, chunk, target

    def of(self, parts: ir.Value) -> ir.Value:
        n = self._nodes
        first = n.op("Gather", parts, n.ints(0, scalar=True))
        rest = n.op("Slice", parts, n.ints(1), n.ints(2**62), n.ints(0))
        return n.op("Scan", self.rounded(first), rest, body=ir.AttrGraph("body", self._body()), num_scan_inputs=1)

    def _body(self) -> ir.Graph:
        kind = ir.TensorType(ir.DataType.FLOAT)
        total, part = (ir.Value(name=self._nodes.fresh(), type=kind) for _ in range(2))
        body = ir.Graph([total, part], [], nodes=[], name=self._nodes.fresh())
        inside = self._nodes.inside(body)
        result = _rounded(inside, inside.op("Add", total, part), self._target)
        result.type = kind
        body.outputs.append(result)
        return body

    def rounded(self, value: ir.Value) -> ir.Value:
        """The value after it went through the low format."""
        return _rounded(self._nodes, value, self._target)

    def chunks(self, terms: int, per_step: int = 1) -> tuple[int, int]:
        """How many chunks ``terms`` make, and how long each is; ``per_step`` products belong to one term."""
        length = max(1, self.chunk // per_step)
        return -(-terms // length), length


def _rounded(nodes: Nodes, value: ir.Value, target: int) -> ir.Value:
    return nodes.op("Cast", nodes.op("Cast", value, to=target), to=int(ir.DataType.FLOAT))


def _matmul(node: ir.Node, n: Nodes, totals: _Totals) -> ir.Value | None:
    a, b = node.inputs
    return None if a is None or b is None else _product(a, b, _rank(a), _rank(b), n, totals)


def _product(
    a: ir.Value, b: ir.Value, rank_a: int | None, rank_b: int | None, n: Nodes, totals: _Totals
) -> ir.Value | None:
    terms = _dim(a, -1) or _dim(b, -2)
    if rank_a is None or rank_b is None or rank_a < 2 or rank_b < 2 or terms is None:
        return None
    count, length = totals.chunks(terms)
    if count == 1:
        return n.op("MatMul", a, b)
    missing = count * length - terms
    a, b = _padded(a, rank_a, rank_a - 1, missing, n), _padded(b, rank_b, rank_b - 2, missing, n)
    a = n.op("Reshape", a, n.ints(*[0] * (rank_a - 1), count, length))
    a = n.op("Transpose", a, perm=[rank_a - 1, *range(rank_a - 1), rank_a])
    b = n.op("Reshape", b, n.ints(*[0] * (rank_b - 2), count, length, -1))
    b = n.op("Transpose", b, perm=[rank_b - 2, *range(rank_b - 2), rank_b - 1, rank_b])
    if rank_a < rank_b:
        a = n.op("Unsqueeze", a, n.ints(*range(1, 1 + rank_b - rank_a)))
    elif rank_b < rank_a:
        b = n.op("Unsqueeze", b, n.ints(*range(1, 1 + rank_a - rank_b)))
    return totals.of(n.op("MatMul", a, b))


def _gemm(node: ir.Node, n: Nodes, totals: _Totals) -> ir.Value | None:
    a, b = node.inputs[0], node.inputs[1]
    if a is None or b is None:
        return None
    sides = []
    for value, name in ((a, "transA"), (b, "transB")):
        flipped = n.op("Transpose", value, perm=[1, 0]) if node.attributes.get_int(name, 0) else value
        if flipped is not value and value.shape is not None:
            flipped.shape = ir.Shape([value.shape[1], value.shape[0]])
        sides.append(flipped)
    total = _product(sides[0], sides[1], 2, 2, n, totals)
    if total is None:
        return None
    total = n.scaled(total, node.attributes.get_float("alpha", 1.0))
    c = node.inputs[2] if len(node.inputs) > 2 else None
    return total if c is None else n.op("Add", total, n.scaled(c, node.attributes.get_float("beta", 1.0)))


def _conv(node: ir.Node, n: Nodes, totals: _Totals) -> ir.Value | None:
    x, w = node.inputs[0], node.inputs[1]
    shape = _static(w)
    if x is None or w is None or shape is None or node.attributes.get_int("group", 1) != 1:
        return None
    out, channels, *kernel = shape
    count, length = totals.chunks(channels, math.prod(kernel))
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if count > 1:
        missing, rank = count * length - channels, len(shape)
        x, w = _padded(x, rank, 1, missing, n), _padded(w, rank, 1, missing, n)
        w = n.op("Reshape", w, n.ints(out, count, length, *kernel))
        w = n.op("Transpose", w, perm=[1, 0, *range(2, rank + 1)])
        w = n.op("Reshape", w, n.ints(count * out, length, *kernel))
        attributes = {k: v for k, v in node.attributes.items() if k != "group"}
        y = n.op("Conv", x, w, group=count, **attributes)
        size = n.op("Shape", y)
        flat = n.op("Reshape", y, n.ints(0, count, out, -1))
        total = totals.of(n.op("Transpose", flat, perm=[1, 0, 2, 3]))
        batch, space = (n.op("Slice", size, n.ints(a), n.ints(b)) for a, b in ((0, 1), (2, rank)))
        result = n.op("Reshape", total, n.op("Concat", batch, n.ints(out), space, axis=0))
    else:
        result = n.op("Conv", x, w, **dict(node.attributes))
    if bias is None:
        return result
    return n.op("Add", result, n.op("Reshape", bias, n.ints(1, out, *[1] * len(kernel))))


def _reduction(node: ir.Node, n: Nodes, totals: _Totals) -> ir.Value | None:
    x = node.inputs[0]
    rank = None if x is None else _rank(x)
    if x is None or rank is None or x.shape is None:
        return None
    axes = _axes(node, rank)
    sizes = None if axes is None else [_dim(x, axis) for axis in axes]
    if not axes or sizes is None or None in sizes:
        return None
    terms = math.prod(size for size in sizes if size is not None)
    count, length = totals.chunks(terms)
    kept = [axis for axis in range(rank) if axis not in axes]
    rows = n.op("Transpose", x, perm=[*kept, *axes])
    rows = n.op("Reshape", rows, n.ints(*[0] * len(kept), terms))
    rows = _padded(rows, len(kept) + 1, len(kept), count * length - terms, n)
    rows = n.op("Reshape", rows, n.ints(*[0] * len(kept), count, length))
    parts = n.op("ReduceSum", rows, n.ints(-1), keepdims=0)
    total = n.op("Transpose", parts, perm=[len(kept), *range(len(kept))])
    total = totals.of(total)
    if node.op_type != "ReduceSum":
        total = n.scaled(total, 1 / terms)
    keep = node.op_type == "GlobalAveragePool" or node.attributes.get_int("keepdims", 1) != 0
    return n.op("Unsqueeze", total, n.ints(*axes)) if keep else total


def _axes(node: ir.Node, rank: int) -> list[int] | None:
    """The axes that a reduction adds over, ascending; None if only a run tells."""
    if node.op_type == "GlobalAveragePool":
        return list(range(2, rank))
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is None:
        return [] if node.attributes.get_int("noop_with_empty_axes", 0) != 0 else list(range(rank))
    tensor = ir.convenience.get_const_tensor(given)
    return None if tensor is None else sorted(int(axis) % rank for axis in tensor.numpy().reshape(-1))


_SUMS = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ReduceSum": _reduction,
    "ReduceMean": _reduction,
    "GlobalAveragePool": _reduction,
}
_NORMS = {
    "InstanceNormalization": norms.instance_norm,
    "LayerNormalization": norms.layer_norm,
    "RMSNormalization": norms.layer_norm,
}


def _padded(value: ir.Value, rank: int, axis: int, missing: int, n: Nodes) -> ir.Value:
    """The value with ``missing`` zeros at the end of an axis."""
    if not missing:
        return value
    pads = [0] * (2 * rank)
    pads[rank + axis] = missing
    return n.op("Pad", value, n.ints(*pads))


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _dim(value: ir.Value, axis: int) -> int | None:
    if value.shape is None or len(value.shape) < 2:
        return None
    size = value.shape[axis]
    return size if isinstance(size, int) else None


def _static(value: ir.Value | None) -> Sequence[int] | None:
    if value is None or value.shape is None or not all(isinstance(d, int) for d in value.shape):
        return None
    return [d for d in value.shape if isinstance(d, int)]
