"""The element type of every value, and the strict check: would a strongly typed parser take this model?"""

from collections.abc import Iterator

import onnx_ir as ir

from mpdeploy.graph.operators import Signature, opset_of, signature
from mpdeploy.graph.scope import all_graphs, all_nodes, attribute_graph, subgraphs_of
from mpdeploy.graph.traits import is_standard

_DTYPE_ATTRIBUTE = {
    "Cast": "to",
    "EyeLike": "dtype",
    "RandomNormal": "dtype",
    "RandomUniform": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniformLike": "dtype",
    "Bernoulli": "dtype",
    "Multinomial": "dtype",
    "SequenceEmpty": "dtype",
    "HannWindow": "output_datatype",
    "HammingWindow": "output_datatype",
    "BlackmanWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
}


def element_type(value: ir.Value) -> ir.DataType | None:
    """Return a value's element type (for sequences and optionals that of their tensors); None if unknown."""
    kind = value.type
    while kind is not None and isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        kind = kind.elem_type
    return None if kind is None or kind.dtype is ir.DataType.UNDEFINED else kind.dtype


def is_container(value: ir.Value) -> bool:
    """Tell whether a value is a sequence or an optional, which no Cast can convert."""
    return isinstance(value.type, (ir.SequenceType, ir.OptionalType))


def infer(model: ir.Model) -> None:
    """Fill in the element types that ONNX's own inference left open: past com.microsoft and unknown operators.

    A type stays unknown only where no published rule gives it.
    """
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if value.type is None and value.const_value is not None:
                value.type = ir.TensorType(value.const_value.dtype)
                value.shape = ir.Shape(value.const_value.shape.numpy())
    _infer_graph(model, model.graph)


def _infer_graph(model: ir.Model, graph: ir.Graph) -> None:
    """Types flow into subgraphs, through them, and out again."""
    for node in graph:
        if is_standard(node) and node.op_type in _BODY_OFFSETS:
            _enter_body(node)
        for subgraph in subgraphs_of(node):
            _infer_graph(model, subgraph)
        if all(value.type is not None for value in node.outputs):
            continue
        rules = signature(node.domain, node.op_type, opset_of(model, node.domain))
        for index, value in enumerate(node.outputs):
            if value.type is None:
                dtype = _output_type(node, index, rules)
                if dtype is not None:
                    value.type = ir.TensorType(dtype)


# How many outputs of a body stand before those that its node has, too: the condition.
_BODY_OFFSETS = {"Loop": 1, "Scan": 0}


def _enter_body(node: ir.Node) -> None:
    body = attribute_graph(node, "body")
    # The node's own inputs end like the body's: opset 8 has sequence lengths in front.
    for value, given in zip(reversed(body.inputs), reversed(node.inputs), strict=False):
        dtype = None if given is None else element_type(given)
        if value.type is None and dtype is not None:
            value.type = ir.TensorType(dtype)


def dtype_attribute(node: ir.Node) -> str | None:
    """Return the name of the attribute that decides a node's output type, if its operator has one."""
    if node.op_type == "DequantizeLinear" and "output_dtype" in node.attributes:  # optional, and new in opset 23
        return "output_dtype"
    return _DTYPE_ATTRIBUTE.get(node.op_type) if node.domain in ("", "ai.onnx") else None


# Operators whose result has the type of their first input unless the attribute names another.
_FOLLOWS_INPUT = frozenset({"EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli"})


def write_out_result_types(model: ir.Model) -> None:
    """Name the result type of each operator that takes it from an input: that input may then change its own."""
    for node in all_nodes(model):
        name = dtype_attribute(node)
        if node.op_type in _FOLLOWS_INPUT and name is not None and name not in node.attributes:
            dtype = element_type(node.outputs[0])
            if dtype is not None:
                node.attributes[name] = ir.AttrInt64(name, int(dtype))


def _output_type(node: ir.Node, index: int, rules: Signature | None) -> ir.DataType | None:
    if is_standard(node) and (node.op_type == "If" or node.op_type in _BODY_OFFSETS):
        inner = attribute_graph(node, "then_branch" if node.op_type == "If" else "body").outputs
        place = index + _BODY_OFFSETS.get(node.op_type, 0)
        return element_type(inner[place]) if place < len(inner) else None
    name = dtype_attribute(node)
    if name is not None and name in node.attributes:
        return ir.DataType(node.attributes[name].as_int())
    slot = rules.output(index) if rules else None
    if rules is None or slot is None:
        return None
    for position, value in enumerate(node.inputs):
        given = rules.input(position)
        if value is not None and given is not None and given.type == slot.type and element_type(value) is not None:
            return element_type(value)
    only = rules.allowed[slot.type]
    return next(iter(only)) if len(only) == 1 else None


def type_faults(model: ir.Model) -> Iterator[str]:
    """Yield one line for each node whose operands break its operator's type rules; nothing if all is well.

    This is what a strongly typed parser checks: one type for each type variable, and an allowed one.
    """
    for node in all_nodes(model):
        rules = signature(node.domain, node.op_type, opset_of(model, node.domain))
        if rules is None:
            continue
        bound: dict[str, ir.DataType] = {}
        operands = [(rules.input(i), v) for i, v in enumerate(node.inputs)]
        operands += [(rules.output(i), v) for i, v in enumerate(node.outputs)]
        for slot, value in operands:
            dtype = None if value is None else element_type(value)
            if slot is None or dtype is None or value is None:
                continue
            if dtype not in rules.allowed[slot.type]:
                yield f"{node.op_type} '{node.name}' does not take {dtype.name} for '{value.name}'"
            elif slot.homogeneous and bound.setdefault(slot.type, dtype) is not dtype:
                yield f"{node.op_type} '{node.name}' mixes {bound[slot.type].name} and {dtype.name} ('{value.name}')"
