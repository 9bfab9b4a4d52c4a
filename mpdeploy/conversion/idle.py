"""Why a conversion lowered no product, in a sentence: it is then worth nothing, whatever its file's size says."""

from collections import Counter

import onnx_ir as ir

from mpdeploy.graph.scope import all_nodes
from mpdeploy.graph.traits import Kind, kind_of
from mpdeploy.graph.types import element_type

_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
_INTEGER_PRODUCTS = frozenset({"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", "QGemm", "QAttention"})
_NAMES = {ir.DataType.FLOAT8E4M3FN: "FP8", ir.DataType.FLOAT8E5M2: "FP8", ir.DataType.DOUBLE: "FP64"}


def nothing_lowered(before: Counter[str], after: Counter[str]) -> str:
    """Return why no product is in a low format that was not before; empty if one is.

    Both are what ``products`` counted, in the source and in the result.
    """
    if any(after[kind] > before[kind] for kind in ("FP16", "BF16")):
        return ""
    if not after:
        return "nothing was lowered: the model has no matrix product, convolution or recurrence"
    told = " and ".join(
        f"{'its' if i == 0 else 'the other'} {count:,} {'product' if count == 1 else 'products'} "
        f"{'is' if count == 1 else 'are'} {kind}{' (the plan says why)' if kind == 'FP32' else ' already'}"
        for i, (kind, count) in enumerate(after.most_common())
    )
    return f"nothing was lowered: {told}"


def products(model: ir.Model) -> Counter[str]:
    """Count the model's matrix products, convolutions and recurrences by the format that they compute in."""
    return Counter(_format(node) for node in all_nodes(model) if _is_product(node))


def _is_product(node: ir.Node) -> bool:
    return kind_of(node) is Kind.HEAVY or node.op_type in _INTEGER_PRODUCTS


def _format(node: ir.Node) -> str:
    if node.op_type in _INTEGER_PRODUCTS:
        return "INT8"
    kinds = [element_type(value) for value in node.inputs if value is not None]
    half = next((kind for kind in kinds if kind in _HALVES), None)
    if half is not None:
        return "FP16" if half is ir.DataType.FLOAT16 else "BF16"
    makers = [value.producer() for value in node.inputs[:2] if value is not None]
    stored = [maker.inputs[0] for maker in makers if maker is not None and maker.op_type == "DequantizeLinear"]
    if len(stored) == len(makers) and stored and stored[0] is not None:
        kind = element_type(stored[0])
        return _NAMES.get(kind, "INT8") if kind is not None else "INT8"
    return _NAMES.get(kinds[0], "FP32") if kinds and kinds[0] is not None else "FP32"
