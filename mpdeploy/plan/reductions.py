"""Which elements a reduction or a normalisation adds up."""

import math

import onnx_ir as ir

from mpdeploy.plan.constants import small_array

_SPATIAL = frozenset({"GlobalAveragePool", "GlobalLpPool", "InstanceNormalization"})
_WINDOWED = frozenset({"AveragePool", "LpPool"})
_TRAILING = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})


def reduced_axes(node: ir.Node, rank: int) -> tuple[int, ...] | None:
    """Return the axes over which a node adds, for an input of that rank; None if only a run can tell.

    Pooling windows and group normalisation have no such axes: None, too.
    """
    op = node.op_type
    attributes = node.attributes
    if op in _SPATIAL:
        return tuple(range(2, rank))
    if op in _TRAILING:
        first = attributes["axis"].as_int() if "axis" in attributes else -1
        return tuple(range(first % rank, rank)) if rank else ()
    if op == "LpNormalization":
        return (attributes["axis"].as_int() if "axis" in attributes else rank - 1,)
    if op == "MeanVarianceNormalization":
        return tuple(attributes["axes"].as_ints()) if "axes" in attributes else tuple(a for a in (0, 2, 3) if a < rank)
    if op in ("CumSum", "CumProd"):
        return _given(node, rank)
    if op.startswith("Reduce"):
        if "axes" in attributes:
            return tuple(attributes["axes"].as_ints())
        if len(node.inputs) > 1 and node.inputs[1] is not None:
            return _given(node, rank)
        idle = "noop_with_empty_axes" in attributes and attributes["noop_with_empty_axes"].as_int()
        return () if idle else tuple(range(rank))
    return None


def reduced_count(node: ir.Node) -> int | None:
    """Return how many elements go into one sum; None if a dimension is unknown."""
    if node.op_type in _WINDOWED:
        return math.prod(node.attributes["kernel_shape"].as_ints())
    value = node.inputs[0] if node.inputs else None
    if value is None or value.shape is None:
        return None
    dims = list(value.shape)
    axes = reduced_axes(node, len(dims))
    if axes is None or any(not -len(dims) <= axis < len(dims) for axis in axes):
        return None
    sizes = [dims[axis] for axis in axes]
    return math.prod(d for d in sizes if isinstance(d, int)) if all(isinstance(d, int) for d in sizes) else None


def _given(node: ir.Node, rank: int) -> tuple[int, ...] | None:
    array = small_array(node.inputs[1])
    if array is None:
        return None
    return tuple(int(axis) for axis in array.ravel()) or tuple(range(rank))
