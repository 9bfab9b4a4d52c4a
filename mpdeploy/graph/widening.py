"""A half-precision model in FP32 again, so that it can be planned for the other half format.

Its numbers are those of the half format, and no more; its arithmetic is FP32.  The model's own inputs and outputs keep
their types, with a Cast on the way in or out.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from mpdeploy.errors import ModelError
from mpdeploy.graph.names import Names
from mpdeploy.graph.scope import all_graphs, all_nodes, all_values
from mpdeploy.graph.tensors import StreamedTensor, WidenedTensor
from mpdeploy.graph.types import element_type, is_container

# Attributes that name an element type: of the result, or of the arithmetic inside.
TYPE_ATTRIBUTES = frozenset(
    {"to", "dtype", "output_datatype", "output_dtype", "precision", "softmax_precision", "stash_type"}
)


def holds(model: ir.Model, half: ir.DataType) -> bool:
    """Tell whether the model computes or stores in the format: more than that its inputs and outputs have it."""
    given = {*model.graph.inputs, *model.graph.outputs}
    casts = {v for node in all_nodes(model) if node.op_type == "Cast" for v in node.outputs}
    return any(element_type(v) is half for v in all_values(model) if v not in given and v not in casts)


def widen(model: ir.Model, half: ir.DataType, *, low_io: bool = False) -> None:
    """Change the model in place: each FP16 (or BF16) value and attribute becomes FP32.

    With ``low_io`` its inputs and outputs do, too.  Raises ``ModelError`` if one of those is a sequence.
    """
    graph, names = model.graph, Names(model)
    inputs = [v for v in graph.inputs if element_type(v) is half]
    outputs = [v for v in graph.outputs if element_type(v) is half]
    if any(is_container(value) for value in (*inputs, *outputs)):
        raise ModelError(f"its inputs and outputs are sequences of {half.name}, which no Cast converts")
    for inner in all_graphs(model):
        for value in inner.initializers.values():
            if value.const_value is not None and value.const_value.dtype is half:
                value.const_value = widened_tensor(value.const_value)
    for node in all_nodes(model):
        widen_attributes(node, frozenset({half}))
    for value in list(all_values(model)):
        if value.type is not None:
            value.type = widened_type(value.type, frozenset({half}))
    if not low_io:
        for value in inputs:
            _cast_in(graph, value, half, names)
        for value in dict.fromkeys(outputs):
            _cast_out(graph, value, half, names)
    _drop_idle_casts(model)


def stored(model: ir.Model, half: ir.DataType) -> Iterator[ir.TensorProtocol]:
    """Yield the model's tensors of the format, attributes included."""
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype is half:
                yield value.const_value
    for node in all_nodes(model):
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.TENSOR and attribute.as_tensor().dtype is half:
                yield attribute.as_tensor()


def widened_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a half-precision tensor as float32; a streamed one is converted as it is read."""
    if isinstance(tensor, StreamedTensor):
        return WidenedTensor(tensor)
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def widen_attributes(node: ir.Node, halves: frozenset[ir.DataType]) -> None:
    """Let a node's attributes hold and name float32 instead of these formats."""
    codes = {int(half) for half in halves}
    for name, attribute in list(node.attributes.items()):
        if attribute.type is ir.AttributeType.TENSOR and attribute.as_tensor().dtype in halves:
            node.attributes[name] = ir.AttrTensor(name, widened_tensor(attribute.as_tensor()))
        elif attribute.type is ir.AttributeType.TYPE_PROTO:
            kind = widened_type(attribute.value.type, halves)
            node.attributes[name] = ir.AttrTypeProto(name, ir.TypeAndShape(kind, attribute.value.shape))
        elif name in TYPE_ATTRIBUTES and attribute.value in codes:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


def widened_type(kind: ir.TypeProtocol, halves: frozenset[ir.DataType]) -> ir.TypeProtocol:
    """Return a type with float32 in place of these formats, in sequences and optionals, too."""
    if isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        return type(kind)(widened_type(kind.elem_type, halves))
    return ir.TensorType(ir.DataType.FLOAT) if kind.dtype in halves else kind


def _cast_in(graph: ir.Graph, value: ir.Value, half: ir.DataType, names: Names) -> None:
    if value.const_value is not None:  # what it is unless it is given
        value.const_value = ir.Tensor(value.const_value.numpy().astype(half.numpy()), dtype=half, name=value.name)
    value.type = ir.TensorType(half)
    cast = _cast(value, ir.DataType.FLOAT, names.fresh(f"{value.name}_fp32"), names)
    for user, index in list(value.uses()):
        if user is not cast:
            user.replace_input_with(index, cast.outputs[0])
    if len(graph):
        graph.insert_before(graph[0], cast)
    else:
        graph.append(cast)


def _cast_out(graph: ir.Graph, value: ir.Value, half: ir.DataType, names: Names) -> None:
    if value.is_graph_input():
        return  # an input that is an output as it is
    name = str(value.name)
    value.name = names.fresh(f"{name}_fp32")
    cast = _cast(value, half, name, names)
    graph.append(cast)
    for index, output in enumerate(graph.outputs):
        if output is value:
            graph.outputs[index] = cast.outputs[0]


def _cast(value: ir.Value, to: ir.DataType, name: str, names: Names) -> ir.Node:
    result = ir.Value(name=name, type=ir.TensorType(to), shape=value.shape)
    attributes = {"to": ir.AttrInt64("to", int(to))}
    return ir.Node("", "Cast", [value], attributes, outputs=[result], name=names.fresh_node(f"{name}_cast"))


def _drop_idle_casts(model: ir.Model) -> None:
    """Drop the Casts that go from float32 to itself now."""
    for node in list(all_nodes(model)):
        if node.op_type not in ("Cast", "CastLike") or node.domain or node.inputs[0] is None or node.graph is None:
            continue
        given, made = node.inputs[0], node.outputs[0]
        if element_type(given) is not ir.DataType.FLOAT or element_type(made) is not ir.DataType.FLOAT:
            continue
        if not made.is_graph_output() and node.graph is given.graph:
            made.replace_all_uses_with(given)
            node.graph.remove(node, safe=True)
