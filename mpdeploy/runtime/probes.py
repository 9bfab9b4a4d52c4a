"""Values inside branches and loop bodies made visible: each becomes one more output of the node that holds it.

An If gives the value of the branch that ran, and nothing (no elements) for the other; a Loop or a Scan gives the
values of all iterations, stacked along a new first axis.  An If inside a loop, which may take its branches in turn,
stays shut.
"""

from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from mpdeploy.graph.names import Names
from mpdeploy.graph.patience import carried
from mpdeploy.graph.scope import all_graphs, all_nodes, nodes_under, subgraphs_of

LOOPS = frozenset({"Loop", "Scan"})
_HOLDERS = LOOPS | {"If"}


def is_holder(node: ir.Node) -> bool:
    """Whether a node's subgraphs can be looked into."""
    return node.domain == "" and node.op_type in _HOLDERS


def distinct(model: ir.Model) -> ir.Model:
    """Return the model with no name twice: branches may each have a value of one name.  The n-th such gets a number.

    A model whose names are distinct comes back as it is.
    """
    seen: set[str] = set()
    if not any(_taken(v, seen) for v in _inner_values(model)):
        return model
    copy = carried(model, model.clone())
    names, seen = Names(copy), set()
    for value in _inner_values(copy):
        if _taken(value, seen):
            value.name = names.fresh(str(value.name))
    return copy


def _inner_values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for graph in all_graphs(model):
        if graph is not model.graph:
            yield from graph.inputs
        for node in graph:
            yield from (v for v in node.outputs if v.name)


def _taken(value: ir.Value, seen: set[str]) -> bool:
    name = str(value.name)
    known = name in seen
    seen.add(name)
    return known


def exposed(model: ir.Model, wanted: Collection[str]) -> tuple[ir.Model, frozenset[str]]:
    """Return the model with the wanted inner values as outputs of main-graph nodes, and the names of those.

    ``wanted`` are names of values; each is that of the new output, the inner value itself gets another.  Those that
    are no tensors of known type stay hidden.  A model with none of them comes back as it is.
    """
    inner = {v.name for node in model.graph for g in subgraphs_of(node) for n in nodes_under(g) for v in n.outputs}
    names = inner & set(wanted)
    if not names:
        return model, frozenset()
    copy = carried(model, model.clone())
    known = Names(copy)
    shown: set[str] = set()
    for node in list(copy.graph):
        for name, value in _lift(node, names, known):
            value.name = name
            shown.add(name)
    return copy, frozenset(shown)


def _lift(
    node: ir.Node, wanted: Collection[str | None], known: Names, *, looped: bool = False
) -> list[tuple[str, ir.Value]]:
    """Add outputs to a node for the wanted values inside it; return each wanted name with the new output."""
    if not is_holder(node) or (looped and node.op_type == "If"):
        return []
    graphs, looped = list(subgraphs_of(node)), looped or node.op_type in LOOPS
    found = [(graph, name, value) for graph in graphs for name, value in _inside(graph, wanted, known, looped)]
    if not found:
        return []
    old = len(graphs[0].outputs) - (1 if node.op_type == "Loop" else 0)  # a Loop's first output is its condition
    node.resize_outputs(old + len(found))
    for output in node.outputs:
        output.name = output.name or known.fresh("unused")
    lifted = []
    for output, (graph, name, value) in zip(node.outputs[old:], found, strict=True):
        output.type = value.type
        for other in graphs:
            other.outputs.append(_copied(value, graph, known) if other is graph else _nothing(value, other, known))
        lifted.append((name, output))
    for attribute in ("scan_output_directions", "scan_output_axes"):
        if attribute in node.attributes:
            numbers = [*node.attributes[attribute].as_ints(), *[0] * len(found)]
            node.attributes[attribute] = ir.AttrInt64s(attribute, numbers)
    return lifted


def _inside(
    graph: ir.Graph, wanted: Collection[str | None], known: Names, looped: bool
) -> Iterator[tuple[str, ir.Value]]:
    for node in list(graph):
        for value in list(node.outputs):
            if value.name in wanted and isinstance(value.type, ir.TensorType) and value.dtype is not None:
                name = str(value.name)
                value.name = known.fresh(f"{name}__inside")  # no inner name may be that of an outer value
                yield name, value
        yield from _lift(node, wanted, known, looped=looped)


def _copied(value: ir.Value, graph: ir.Graph, known: Names) -> ir.Value:
    """A copy: a value may be an output of its graph only once."""
    output = ir.Value(name=known.fresh("shown"), type=value.type, shape=value.shape)
    graph.append(ir.Node("", "Identity", [value], outputs=[output], name=known.fresh_node("shown")))
    return output


def _nothing(value: ir.Value, graph: ir.Graph, known: Names) -> ir.Value:
    dtype = value.dtype or ir.DataType.FLOAT
    empty = ir.Tensor(np.empty(0, dtype.numpy()), dtype=dtype)
    output = ir.Value(name=known.fresh("nothing"), type=ir.TensorType(dtype), shape=ir.Shape([0]))
    attributes = {"value": ir.AttrTensor("value", empty)}
    graph.append(ir.Node("", "Constant", [], attributes, outputs=[output], name=known.fresh_node("nothing")))
    return output


def holders(model: ir.Model) -> dict[ir.Graph, tuple[ir.Node, str]]:
    """Return, for every subgraph, the node that holds it and under which attribute."""
    return {
        attribute.as_graph(): (node, name)
        for node in all_nodes(model)
        for name, attribute in node.attributes.items()
        if attribute.type is ir.AttributeType.GRAPH
    }
