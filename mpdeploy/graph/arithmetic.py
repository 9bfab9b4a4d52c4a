"""How much arithmetic an operator does, and in which type: what low precision is worth is measured in FLOPs."""

import math
from collections.abc import Callable

import onnx_ir as ir

from mpdeploy.graph.scope import all_nodes
from mpdeploy.graph.shapes import guessed_dims, guessed_size
from mpdeploy.graph.types import element_type

_LOW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def flops(node: ir.Node) -> int:
    """Return the floating-point operations of a matrix product, convolution or recurrence; 0 for all else.

    A multiplication and an addition count as two.  A dimension without a number counts 64; a node in a loop counts
    once.
    """
    count = _FLOPS.get(node.op_type)
    return count(node) if count is not None else 0


def low_share(model: ir.Model) -> float | None:
    """Return the share of the model's FLOPs whose operands are FP16 or BF16; None if it has no such arithmetic."""
    total = low = 0
    for node in all_nodes(model):
        count = flops(node)
        total += count
        if any(v is not None and element_type(v) in _LOW for v in node.inputs):
            low += count
    return low / total if total else None


def _given(node: ir.Node, index: int) -> list[int]:
    value = node.inputs[index] if index < len(node.inputs) else None
    return guessed_dims(value) if value is not None else []


def _product(node: ir.Node) -> int:
    depth = _given(node, 0)
    return 2 * guessed_size(node.outputs[0]) * (depth[-1] if depth else 1)


def _gemm(node: ir.Node) -> int:
    rows = _given(node, 0)
    transposed = "transA" in node.attributes and node.attributes["transA"].as_int()
    return 2 * guessed_size(node.outputs[0]) * (rows[0 if transposed else -1] if rows else 1)


def _convolution(node: ir.Node) -> int:
    weights = _given(node, 1)
    return 2 * guessed_size(node.outputs[0]) * math.prod(weights[1:])


def _transposed_convolution(node: ir.Node) -> int:
    weights, value = _given(node, 1), node.inputs[0]
    return 2 * guessed_size(value) * math.prod(weights[1:]) if value is not None else 0


def _recurrence(node: ir.Node) -> int:
    sequence, weights, recurrent = _given(node, 0), _given(node, 1), _given(node, 2)
    if len(sequence) != 3 or len(weights) != 3 or len(recurrent) != 3:
        return 0
    return 2 * sequence[0] * sequence[1] * (math.prod(weights) + math.prod(recurrent))


def _einsum(node: ir.Node) -> int:
    left = node.attributes["equation"].as_string().replace(" ", "").partition("->")[0]
    sizes: dict[str, int] = {}
    for index, term in enumerate(left.split(",")):
        dims = _given(node, index)
        if "." not in term and len(term) == len(dims):
            sizes.update(zip(term, dims, strict=True))
    return 2 * math.prod(sizes.values()) if sizes else 0


def _attention(node: ir.Node) -> int:
    query, key = _given(node, 0), _given(node, 1)
    if len(query) < 3 or len(key) < 2:
        return 0
    return 4 * math.prod(query) * key[-2]


_FLOPS: dict[str, Callable[[ir.Node], int]] = {
    **dict.fromkeys(("MatMul", "FusedMatMul", "TransposeMatMul"), _product),
    **dict.fromkeys(("Gemm", "FusedGemm"), _gemm),
    **dict.fromkeys(("Conv", "FusedConv", "NhwcConv", "DeformConv"), _convolution),
    "ConvTranspose": _transposed_convolution,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrence),
    "Einsum": _einsum,
    **dict.fromkeys(("Attention", "MultiHeadAttention"), _attention),
}
