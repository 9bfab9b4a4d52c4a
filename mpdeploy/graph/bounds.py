"""What a model may not exceed: files from strangers must not hang the reader."""

import onnx

from mpdeploy.errors import ModelError
from mpdeploy.graph import canonical

MOST_NODES = 1_000_000  # after all local functions are expanded
HIGHEST_RANK = 64  # numpy's own limit

_Key = tuple[str, str, str]


def check_bounds(proto: onnx.ModelProto) -> None:
    """Raise ``ModelError`` if a tensor's rank, or the number of nodes with all functions expanded, is out of bounds."""
    for tensor in canonical.proto_tensors(proto):
        if len(tensor.dims) > HIGHEST_RANK:
            raise ModelError(
                f"tensor '{tensor.name[:80]}' has {len(tensor.dims):,} dimensions, {HIGHEST_RANK} are the most"
            )
    if proto.functions:
        _check_expansion(proto)


def _check_expansion(proto: onnx.ModelProto) -> None:
    bodies = {(f.domain, f.name, f.overload): f for f in proto.functions}
    counts: dict[_Key, int] = {}
    pending: list[_Key] = list(bodies)
    entered: set[_Key] = set()
    while pending:
        key = pending[-1]
        calls = [c for node in _nodes(bodies[key].node) if (c := _key(node)) in bodies]
        missing = [call for call in calls if call not in counts]
        if key in counts or not missing:
            counts.setdefault(key, sum(counts.get(_key(n), 1) for n in _nodes(bodies[key].node)))
            pending.pop()
        elif key in entered:
            raise ModelError(f"the local function {key[0]}::{key[1]} calls itself")
        else:
            entered.add(key)
            pending += missing
    total = sum(counts.get(_key(node), 1) for node in _nodes(proto.graph.node))
    if total > MOST_NODES:
        raise ModelError(f"its local functions expand to {total:.3g} nodes, {MOST_NODES:,} are the most")


def _key(node: onnx.NodeProto) -> _Key:
    return node.domain, node.op_type, node.overload


def _nodes(nodes: "list[onnx.NodeProto]") -> "list[onnx.NodeProto]":
    """The nodes and those of their subgraphs."""
    found = list(nodes)
    for node in nodes:
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                found += [inner for part in canonical.proto_graphs(graph) for inner in part.node]
    return found
