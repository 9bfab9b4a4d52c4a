"""The float32 twin of a mixed-precision model: same names, same structure, every rounding explicit.

ONNX Runtime's CPU provider computes half operators in float32 and drops the roundings between them; bfloat16 it
hardly runs at all.  The twin computes in float32 everywhere and sends each tensor that the model declares as FP16
or BF16 through a pair of Casts, float32 -> low -> float32, right behind its producer.  So every such tensor holds
exactly a number of its format (overflow to infinity, subnormals and ties to even included), while sums inside
an operator run in float32, as tensor cores run them.

Operators that only move or select elements need no pair: their results are numbers of the format already.
Weights stay as they are, followed by one Cast that the runtime folds: the twin shares the model's data.
"""

from collections.abc import Iterable

import onnx_ir as ir

from mpdeploy.graph.names import Names
from mpdeploy.graph.patience import carried
from mpdeploy.graph.scope import all_graphs, all_nodes
from mpdeploy.graph.types import element_type, infer
from mpdeploy.graph.widening import widen_attributes, widened_type
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.doubles import rounded_double
from mpdeploy.runtime.nodes import Nodes

_FORMATS = {ir.DataType.FLOAT16: Format.FP16, ir.DataType.BFLOAT16: Format.BF16}
_LOW = frozenset(_FORMATS)
_FLOATING = _LOW | {ir.DataType.FLOAT, ir.DataType.DOUBLE}

# Standard operators whose floating-point results are elements of their inputs of the same type (or -x, |x|, an
# integer near x, 0, 1): exact in any format that holds the inputs.
# fmt: off
_EXACT = frozenset(
    {
        "Abs", "Ceil", "CenterCropPad", "Clip", "Compress", "Concat", "ConcatFromSequence", "ConstantOfShape",
        "DepthToSpace", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements", "GatherND",
        "GlobalMaxPool", "Identity", "If", "Loop", "Max", "MaxPool", "MaxUnpool", "Min", "Neg", "OneHot",
        "Optional", "OptionalGetElement", "Pad", "ReduceMax", "ReduceMin", "Relu", "Reshape",
        "ReverseSequence", "Round", "Scan", "SequenceAt", "SequenceConstruct", "SequenceEmpty",
        "SequenceErase", "SequenceInsert", "SequenceMap", "Sign", "Slice", "SpaceToDepth", "Split",
        "SplitToSequence", "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unique", "Unsqueeze", "Where",
    }
)
# fmt: on
_NUMBERS = (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS)

Pending = dict[ir.Value, ir.DataType]


def float_twin(model: ir.Model) -> ir.Model:
    """Return the twin of a model in the form that ``mpdeploy.graph.io.load`` gives: functions inlined, types inferred.

    Inputs and outputs keep their names and shapes and become float32 where they were FP16 or BF16; inputs are
    rounded on entry.  ``model`` itself is not changed.
    """
    twin = carried(model, model.clone())
    infer(twin)
    names = Names(twin)
    low = _low_values(twin)
    for graph in list(all_graphs(twin)):
        _lift_constants(graph, low, names)
        _lift_nodes(graph, low, names)
        for value in (*graph.inputs, *graph.outputs):
            _declare_float(value)
    _round_inputs(twin.graph, low, names)
    return twin


def runnable(model: ir.Model) -> ir.Model:
    """Return what ONNX Runtime can run without hiding a rounding: the twin of a model that holds low-precision tensors.

    Every value keeps its name; a model without such tensors comes back as it is.
    """
    return float_twin(model) if low_formats(model) else model


def low_formats(model: ir.Model) -> frozenset[ir.DataType]:
    """Return which of FP16 and BF16 the model computes or stores in."""
    return frozenset(_low_values(model).values())


def _low_values(model: ir.Model) -> Pending:
    """The values that hold FP16 or BF16 tensors (or sequences of them), with their type.

    Where an operator is in no published set, a result of unknown type is taken to be of the type of the first
    floating-point input.
    """
    known: Pending = {}
    for graph in all_graphs(model):
        for value in (*graph.inputs, *graph.initializers.values()):
            _note(known, value, element_type(value))
    for node in all_nodes(model):
        guess = next((t for v in node.inputs if v and (t := known.get(v)) in _FLOATING), None)
        for value in node.outputs:
            _note(known, value, element_type(value) or guess)
    return {value: dtype for value, dtype in known.items() if dtype in _LOW}


def _note(known: Pending, value: ir.Value, dtype: ir.DataType | None) -> None:
    if dtype is not None:
        known[value] = dtype


def _lift_constants(graph: ir.Graph, low: Pending, names: Names) -> None:
    """Put one Cast behind each low weight; a weight that doubles as an input's default becomes a plain weight."""
    casts = []
    for value in list(graph.initializers.values()):
        if value not in low:
            continue
        if value.is_graph_input():
            graph.inputs.remove(value)
        name = value.name or ""
        cast = _cast(value, ir.DataType.FLOAT, name)
        _take_over(value, cast.outputs[0], spare=(cast,))
        graph.initializers.pop(name)
        value.name = names.fresh(f"{name}__stored")
        graph.initializers[value.name] = value
        casts.append(cast)
    _prepend(graph, casts)


def _lift_nodes(graph: ir.Graph, low: Pending, names: Names) -> None:
    for node in list(graph):
        casts_to_low = node.domain == "" and node.op_type in ("Cast", "CastLike")
        if casts_to_low and node.outputs[0] in low:
            _split_cast(graph, node, low[node.outputs[0]], names)
            continue
        widen_attributes(node, _LOW)
        rounds = not (node.domain == "" and _is_exact(node))
        for value in node.outputs:
            if value not in low or not value.name:  # without a name: an output that is left out
                continue
            _declare_float(value)
            if rounds:
                graph.insert_after(node, _rounding(value, low[value], names))


def _is_exact(node: ir.Node) -> bool:
    if node.op_type != "Constant" and any(a.type in _NUMBERS for a in node.attributes.values()):
        return False  # a bound or filling that is written as an attribute need not be a number of the format
    if node.op_type == "Resize":
        return node.attributes.get_string("mode", "nearest") == "nearest"
    if node.op_type in ("ScatterElements", "ScatterND"):
        return node.attributes.get_string("reduction", "none") in ("none", "max", "min")
    return node.op_type in _EXACT or node.op_type == "Constant"


def _split_cast(graph: ir.Graph, node: ir.Node, dtype: ir.DataType, names: Names) -> None:
    """Let a Cast to low be the rounding itself, then widen."""
    value = node.outputs[0]
    name = value.name or ""
    source = node.inputs[0]
    assert source is not None  # noqa: S101 - the operator's schema demands it
    if element_type(source) is ir.DataType.DOUBLE:
        source = rounded_double(source, _FORMATS[dtype], Nodes(graph, node))
    narrow = _cast(source, dtype, names.fresh(f"{name}__low"))
    widen = _cast(narrow.outputs[0], ir.DataType.FLOAT, name)
    _take_over(value, widen.outputs[0], spare=())
    graph.insert_after(node, [narrow, widen])
    graph.remove(node, safe=True)


def _rounding(value: ir.Value, dtype: ir.DataType, names: Names) -> list[ir.Node]:
    """Return the pair of Casts behind ``value``; all its uses, and its name, pass to the rounded value."""
    name = value.name or ""
    narrow = _cast(value, dtype, names.fresh(f"{name}__low"))
    widen = _cast(narrow.outputs[0], ir.DataType.FLOAT, name)
    _take_over(value, widen.outputs[0], spare=(narrow,))
    value.name = names.fresh(f"{name}__raw")
    return [narrow, widen]


def _round_inputs(graph: ir.Graph, low: Pending, names: Names) -> None:
    casts: list[ir.Node] = []
    for value in graph.inputs:
        if value in low:
            narrow = _cast(value, low[value], names.fresh(f"{value.name}__low"))
            widen = _cast(narrow.outputs[0], ir.DataType.FLOAT, f"{value.name}__rounded")
            _take_over(value, widen.outputs[0], spare=(narrow,))
            casts += [narrow, widen]
    _prepend(graph, casts)


def _cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    """Return a Cast whose result bears ``name`` and the shape of ``value``."""
    result = ir.Value(name=name, type=ir.TensorType(to), shape=value.shape)
    return ir.Node("", "Cast", [value], {"to": ir.AttrInt64("to", int(to))}, outputs=[result], name=f"{name}__cast")


def _take_over(value: ir.Value, heir: ir.Value, spare: Iterable[ir.Node]) -> None:
    """Let every user of ``value`` but ``spare``, and the outputs of its graph, use ``heir`` instead."""
    kept = set(spare)
    for user, index in list(value.uses()):
        if user not in kept:
            user.replace_input_with(index, heir)
    graph = value.graph
    if value.is_graph_output() and isinstance(graph, ir.Graph):
        for i, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[i] = heir


def _prepend(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    if not nodes:
        return
    if len(graph):
        graph.insert_before(graph[0], nodes)
    else:
        graph.extend(nodes)


def _declare_float(value: ir.Value) -> None:
    if value.type is not None:
        value.type = widened_type(value.type, _LOW)
