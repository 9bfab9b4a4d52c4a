"""Sizes of values, as far as their shapes tell."""

import math

import onnx_ir as ir

_UNKNOWN_DIM = 64  # taken for a dimension that has no number, where sizes are only compared


def guessed_dims(value: ir.Value) -> list[int]:
    """Return a value's dimensions, 64 for each without a number; [64] if not even the rank is known."""
    if value.shape is None:
        return [_UNKNOWN_DIM]
    return [d if isinstance(d, int) and d >= 0 else _UNKNOWN_DIM for d in value.shape]


def guessed_size(value: ir.Value) -> int:
    """Return how many elements a value has; a dimension without a number counts 64."""
    return math.prod(guessed_dims(value))


def known_size(value: ir.Value) -> int | None:
    """Return how many elements a value has; None if a dimension is not known."""
    if value.shape is None or not all(isinstance(d, int) and d >= 0 for d in value.shape):
        return None
    return math.prod(d for d in value.shape if isinstance(d, int))
