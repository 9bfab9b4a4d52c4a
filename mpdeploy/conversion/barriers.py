"""Casts that TensorRT for RTX 1.7 fuses with the operators beside them, and then fails on; found by building them.

In each of these places the same graph builds if something stands between the Cast and the operator.  A maximum of a
value with itself is the smallest such thing that leaves every number as it is; the builder looks through Identity,
Reshape and Transpose.
"""

from collections.abc import Set

import onnx_ir as ir

from mpdeploy.graph.names import Names
from mpdeploy.graph.scope import all_nodes, attribute_graph
from mpdeploy.graph.traits import is_standard
from mpdeploy.graph.types import element_type

_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_LOOKED_THROUGH = frozenset({"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Dropout"})
_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


def put_barriers(model: ir.Model, names: Names) -> None:
    """Put a barrier in front of each operator of a model that would be fused wrongly."""
    nodes = [node for node in all_nodes(model) if is_standard(node)]
    slices = {value for node in nodes if node.op_type == "Scan" for value in _slices(node)}
    for node in nodes:
        if _steps_through_widened(node) or _narrows(node, slices):
            _put_before(node, names)


def _slices(scan: ir.Node) -> tuple[ir.Value, ...]:
    """What a step of a Scan gets of the sequences that it runs over."""
    inputs = attribute_graph(scan, "body").inputs
    return tuple(inputs)[len(inputs) - scan.attributes["num_scan_inputs"].as_int() :]


def _steps_through_widened(node: ir.Node) -> bool:
    """A recurrence in FP32 over a sequence that a Cast widens: the Cast is moved into each step, with a wrong shape.

    In the reverse direction each step reads elsewhere, and the Cast stays where it is.
    """
    if node.op_type not in _RECURRENT:
        return False
    direction = node.attributes.get("direction")
    if direction is not None and direction.as_string() != "forward":
        return False
    maker = _producer(node.inputs[0])
    while maker is not None and maker.op_type in _LOOKED_THROUGH:
        maker = _producer(maker.inputs[0])
    return maker is not None and _casts(maker, _HALVES, {ir.DataType.FLOAT})


def _narrows(node: ir.Node, slices: Set[ir.Value]) -> bool:
    """A Cast to a half format of one step's slice, or of what guards a softmax.

    The guard is then taken for the softmax of a fused attention.
    """
    if not _casts(node, {ir.DataType.FLOAT}, _HALVES):
        return False
    return node.inputs[0] in slices or _guards_softmax(_producer(node.inputs[0]))


def _guards_softmax(node: ir.Node | None) -> bool:
    """Where(IsNaN(p), 0, p) behind a softmax, as exporters write attention with a boolean mask."""
    if node is None or node.op_type != "Where":
        return False
    makers = [_producer(value) for value in node.inputs]
    return {"IsNaN", "Softmax"} <= {maker.op_type for maker in makers if maker is not None}


def _casts(node: ir.Node, given: Set[ir.DataType], made: Set[ir.DataType]) -> bool:
    if node.op_type != "Cast" or node.inputs[0] is None:
        return False
    return element_type(node.inputs[0]) in given and element_type(node.outputs[0]) in made


def _producer(value: ir.Value | None) -> ir.Node | None:
    return value.producer() if value is not None else None


def _put_before(node: ir.Node, names: Names) -> None:
    value = node.inputs[0]
    if value is None:
        return
    barrier = ir.node("Max", [value, value], name=names.fresh_node(f"{value.name}_apart"))
    result = barrier.outputs[0]
    result.name, result.type, result.shape = names.fresh(f"{value.name}_apart"), value.type, value.shape
    node.prepend(barrier)
    node.replace_input_with(0, result)
