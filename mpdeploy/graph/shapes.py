"""Sizes of values, as far as their shapes tell."""

import math
from collections.abc import Mapping

import onnx
import onnx.shape_inference
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


def inferred_shapes(model: bytes, inputs: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of main-graph values that follow from these of the inputs, as far as ONNX can tell."""
    proto = onnx.ModelProto.FromString(model)
    for value in proto.graph.input:
        if value.name in inputs and value.type.HasField("tensor_type"):
            shape = value.type.tensor_type.shape
            shape.Clear()
            for size in inputs[value.name]:
                shape.dim.add(dim_value=size)
    for value in proto.graph.output:  # what a file declares there may be stale
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    found = {}
    for value in (*proto.graph.value_info, *proto.graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            found[value.name] = tuple(d.dim_value for d in dims)
    return found
