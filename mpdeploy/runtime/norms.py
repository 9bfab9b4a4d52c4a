"""Normalisations as kernels compute them that keep everything in the low format: each step is rounded."""

from collections.abc import Callable

import onnx_ir as ir

from mpdeploy.runtime.nodes import Nodes

Round = Callable[[ir.Value], ir.Value]


def instance_norm(node: ir.Node, n: Nodes, rounded: Round) -> ir.Value | None:
    """Return InstanceNormalization step by step; None if the rank is unknown."""
    x, scale, bias = node.inputs[0], node.inputs[1], node.inputs[2]
    if x is None or scale is None or bias is None or x.shape is None:
        return None
    rank = len(x.shape)
    shape = n.ints(1, -1, *[1] * (rank - 2))
    axes = n.ints(*range(2, rank))
    normal = _normalised(x, axes, node.attributes.get_float("epsilon", 1e-5), n, rounded, centred=True)
    scaled = rounded(n.op("Mul", normal, n.op("Reshape", scale, shape)))
    return n.op("Add", scaled, n.op("Reshape", bias, shape))


def layer_norm(node: ir.Node, n: Nodes, rounded: Round) -> ir.Value | None:
    """Return LayerNormalization, or RMSNormalization, step by step.

    None if the rank is unknown or the statistics are wanted, too.
    """
    x, scale = node.inputs[0], node.inputs[1]
    if x is None or scale is None or x.shape is None or any(o.uses() or o.is_graph_output() for o in node.outputs[1:]):
        return None
    rank = len(x.shape)
    axes = n.ints(*range(node.attributes.get_int("axis", -1) % rank, rank))
    centred = node.op_type == "LayerNormalization"
    normal = _normalised(x, axes, node.attributes.get_float("epsilon", 1e-5), n, rounded, centred=centred)
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    scaled = n.op("Mul", normal, scale)
    return scaled if bias is None else n.op("Add", rounded(scaled), bias)


def _normalised(x: ir.Value, axes: ir.Value, epsilon: float, n: Nodes, rounded: Round, *, centred: bool) -> ir.Value:
    if centred:
        x = rounded(n.op("Sub", x, rounded(n.op("ReduceMean", x, axes))))
    squares = rounded(n.op("Mul", x, x))
    variance = rounded(n.op("Add", rounded(n.op("ReduceMean", squares, axes)), n.number(epsilon)))
    return rounded(n.op("Div", x, rounded(n.op("Sqrt", variance))))
