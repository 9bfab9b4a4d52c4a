"""Spellings of normalisation and softmax in single operators, where interval arithmetic alone sees only growth.

x / sqrt(mean(x²) + eps) is small however large x is, and exp(x - max(x)) is at most 1: both numerator and denominator
come from the same x, which intervals forget.
"""

import onnx_ir as ir

from mpdeploy.graph.traits import Kind, kind_of
from mpdeploy.plan.constants import scalar
from mpdeploy.plan.groups import is_constant

_DEPTH = 12
_THROUGH = frozenset({"Add", "Sub", "Mul", "Max", "Clip", "Relu", "Abs"})
_SHAPING = frozenset({"Identity", "Reshape", "Unsqueeze", "Squeeze", "Expand", "Transpose", "Cast", "Max"})


def is_deviation(value: ir.Value | None) -> bool:
    """Tell whether a value is a norm or a standard deviation of activations, or its inverse."""
    return _derives_from_root(value, _DEPTH)


def _derives_from_root(value: ir.Value | None, depth: int) -> bool:
    node = None if value is None else value.producer()
    if node is None or depth == 0:
        return False
    if node.op_type in ("ReduceL2", "LpNormalization"):
        return True
    if node.op_type == "Sqrt" or (node.op_type == "Pow" and abs(scalar(node.inputs[1]) or 0.0) == 0.5):
        return _derives_from_sum(node.inputs[0], depth - 1)
    if node.op_type == "Div" and scalar(node.inputs[0]) is not None:
        return _derives_from_root(node.inputs[1], depth - 1)
    if node.op_type == "Reciprocal" or node.op_type in _THROUGH or node.op_type in _SHAPING:
        return any(_derives_from_root(v, depth - 1) for v in node.inputs)
    return False


def _derives_from_sum(value: ir.Value | None, depth: int) -> bool:
    node = None if value is None else value.producer()
    if node is None or depth == 0:
        return False
    if kind_of(node) is Kind.SUM:
        return True
    if node.op_type in _THROUGH or node.op_type in _SHAPING or node.op_type == "Div":
        return any(_derives_from_sum(v, depth - 1) for v in node.inputs if v is not None and not is_constant(v))
    return False


def is_shifted_by_maximum(node: ir.Node) -> bool:
    """Tell whether a Sub takes from a value its own maximum: the result is never positive."""
    value, shift = node.inputs[0], node.inputs[1]
    for _ in range(_DEPTH):
        producer = None if shift is None else shift.producer()
        if producer is None:
            return False
        if producer.op_type == "ReduceMax":
            return producer.inputs[0] is value
        if producer.op_type not in _SHAPING:
            return False
        moving = [v for v in producer.inputs if v is not None and not is_constant(v)]
        shift = moving[0] if moving else None
    return False
