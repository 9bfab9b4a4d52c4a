"""Every graph and node of a model: main graph and subgraphs at any depth.  The only way to reach them."""

from collections.abc import Iterator

import onnx_ir as ir


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph, then every subgraph, parents before children."""
    yield model.graph
    for node in all_nodes(model):
        yield from subgraphs_of(node)


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield every node in order of execution; a node comes before those of its subgraphs."""
    yield from nodes_under(model.graph)


def nodes_under(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph and of all its subgraphs in order of execution."""
    for node in graph:
        yield node
        for subgraph in subgraphs_of(node):
            yield from nodes_under(subgraph)


def subgraphs_of(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the graphs among a node's attributes."""
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def attribute_graph(node: ir.Node, name: str) -> ir.Graph:
    """Return the subgraph that a node holds under ``name``."""
    return node.attributes[name].as_graph()


def graph_of(value: ir.Value) -> ir.Graph | None:
    """Return the graph in which a value is defined."""
    graph = value.graph
    return graph if isinstance(graph, ir.Graph) else None


def parent_node(model: ir.Model) -> dict[int, ir.Node]:
    """Return, for every subgraph's ``id``, the node that holds it."""
    return {id(graph): node for node in all_nodes(model) for graph in subgraphs_of(node)}


def all_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield every value once: graph inputs, initializers, node outputs."""
    seen: set[int] = set()
    for graph in all_graphs(model):
        for value in (*graph.inputs, *graph.initializers.values()):
            if id(value) not in seen:
                seen.add(id(value))
                yield value
        for node in graph:
            yield from node.outputs
