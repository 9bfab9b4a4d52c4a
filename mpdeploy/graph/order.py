"""Graphs whose nodes do not stand in the order in which they can run, as some runtimes accept them: sorted."""

import heapq
from collections.abc import Iterator

import onnx

from mpdeploy.graph import canonical


def sort_nodes(proto: onnx.ModelProto) -> bool:
    """Sort every graph of the model that needs it, in place; tell whether one did.

    Nodes keep their order where nothing speaks against it.  A graph with a cycle stays as it is.
    """
    found = [_sort(graph) for graph in canonical.proto_graphs(proto.graph)]
    return any(found)


def _sort(graph: onnx.GraphProto) -> bool:
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    needs = [{makers[name] for name in _reads(node) if name in makers} for node in graph.node]
    if all(max(makes, default=-1) < index for index, makes in enumerate(needs)):
        return False
    readers: list[list[int]] = [[] for _ in needs]
    for index, makes in enumerate(needs):
        for maker in makes:
            readers[maker].append(index)
    waiting = [len(makes) for makes in needs]
    ready = [index for index, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(needs):
        return False
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes[index] for index in order)
    return True


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, itself or inside its subgraphs."""
    yield from node.input
    for attribute in node.attribute:
        for held in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            for graph in canonical.proto_graphs(held):
                yield from (output.name for output in graph.output)
                for inner in graph.node:
                    yield from inner.input
