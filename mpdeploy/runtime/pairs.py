"""Which value of a candidate graph stands for which value of its reference.

Values pair by name, as a plan keeps them.  Where a tool renamed values, they pair by structure: the same operator
on inputs that pair.  Casts between floating-point formats are looked through; behind a fused part, names pick up the
thread again.  Values inside branches and loop bodies pair in the same way; what a body is fed does not count as a
value of its own.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from mpdeploy.graph.scope import all_graphs, graph_of, subgraphs_of
from mpdeploy.graph.types import element_type
from mpdeploy.runtime.probes import LOOPS, holders, is_holder
from mpdeploy.runtime.runner import dtype_name
from mpdeploy.runtime.segments import fixed_values

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
_LOW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

_Key = tuple[str, str, str, int, tuple[str, ...]]


@dataclass(frozen=True)
class Pair:
    """A value of the reference, by ``name``, and the candidate's, ``partner``.

    ``node`` and ``op`` name the reference's node that computes the value, empty for an input of the model.
    ``dtype`` is the element type that the candidate computes it in, by numpy's name.  ``sources`` are the partners of
    the values that the candidate's node reads, ``readers`` the reference's nodes that read the value.  ``narrowed``:
    the partner is the result of a Cast to a lower format, so the readers are only those behind it.  ``within`` are
    the reference's nodes whose branches or bodies hold the value, outermost first; ``looped``: one of them is a loop,
    so the value's arrays are stacked by iteration.
    """

    name: str
    partner: str
    node: str
    op: str
    dtype: str
    sources: tuple[str, ...]
    readers: tuple[str, ...]
    narrowed: bool = False
    within: tuple[str, ...] = ()
    looped: bool = False


def pair_values(reference: ir.Model, candidate: ir.Model) -> tuple[list[Pair], tuple[str, ...]]:
    """Return the pairs in the candidate's order of execution, and the reference's values that have no partner.

    The names of each model are distinct (see ``mpdeploy.runtime.probes``).
    """
    ours, theirs = _Side(reference), _Side(candidate)
    partner_of = _match(ours, theirs)
    name_of = {partner: value for value, partner in partner_of.items()}
    pairs = []
    for value in theirs.values():
        original = name_of.get(value)
        if original is not None:
            pairs.append(_pair(original, value, ours, theirs, name_of))
        elif theirs.narrows(value) and (original := name_of.get(theirs.behind_casts(value))) is not None:
            pairs.append(_pair(original, value, ours, theirs, name_of, narrowed=True))
    left = (v for v in ours.values() if v not in partner_of and not v.is_graph_input() and not ours.is_cast(v))
    return pairs, tuple(v.name or "" for v in left)


class _Side:
    """One model: its values that depend on an input, in order, and how Casts connect them."""

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.holders = holders(model)
        self.fixed: set[ir.Value] = set()
        for graph in all_graphs(model):  # parents come first
            self.fixed = fixed_values(graph, self.fixed)

    def values(self) -> Iterator[ir.Value]:
        yield from self.graph.inputs
        yield from self._made_in(self.graph)

    def _made_in(self, graph: ir.Graph) -> Iterator[ir.Value]:
        for node in graph:
            if is_holder(node):
                for inner in subgraphs_of(node):
                    yield from self._made_in(inner)
            yield from (v for v in node.outputs if v.name and v not in self.fixed)

    def around(self, value: ir.Value) -> list[tuple[ir.Node, str]]:
        """The nodes that hold a value in a subgraph, outermost first, and under which attribute."""
        found = []
        graph = graph_of(value)
        while graph is not None and graph in self.holders:
            found.append(self.holders[graph])
            graph = found[-1][0].graph if isinstance(found[-1][0].graph, ir.Graph) else None
        return found[::-1]

    def reads(self, value: ir.Value) -> Iterator[ir.Value]:
        """What a value is computed from: the inputs of its node, and for a branch or loop what comes out of it."""
        node = value.producer()
        if node is None:
            return
        yield from (v for v in node.inputs if v is not None)
        if is_holder(node):
            place = (value.index() or 0) + (node.op_type == "Loop")
            for inner in subgraphs_of(node):
                if place < len(inner.outputs):
                    yield inner.outputs[place]

    def fed(self, value: ir.Value) -> ir.Value | None:
        """The value itself; for an input of a body what the loop is fed there at first, None if nothing."""
        current: ir.Value | None = value
        while current is not None and (graph := graph_of(current)) in self.holders and current.is_graph_input():
            node = self.holders[graph][0]
            place = list(graph.inputs).index(current)
            current = node.inputs[place] if place < len(node.inputs) else None
        return current

    def is_cast(self, value: ir.Value) -> bool:
        node = value.producer()
        if node is None or node.op_type != "Cast" or node.domain or node.inputs[0] is None:
            return False
        return element_type(value) in _FLOATS and element_type(node.inputs[0]) in _FLOATS

    def narrows(self, value: ir.Value) -> bool:
        node = value.producer()
        source = node.inputs[0] if node is not None and self.is_cast(value) else None
        return source is not None and element_type(value) in _LOW and element_type(source) not in _LOW

    def behind_casts(self, value: ir.Value) -> ir.Value:
        """The value that a chain of Casts starts from."""
        while self.is_cast(value):
            node = value.producer()
            source = node.inputs[0] if node is not None else None
            if source is None:
                return value
            value = source
        return value

    def key(self, value: ir.Value, tokens: dict[ir.Value, str]) -> _Key | None:
        """What a value is: its operator, its place among the outputs, what the inputs are.  None for an input."""
        node = value.producer()
        if node is None:
            return None
        inputs = tuple("" if v is None else self._token(v, tokens) for v in node.inputs)
        scope = "/".join(f"{holder.op_type}.{name}" for holder, name in self.around(value))
        return scope, node.domain, node.op_type, value.index() or 0, inputs

    def _token(self, value: ir.Value, tokens: dict[ir.Value, str]) -> str:
        source = self.behind_casts(value)
        if source not in tokens and source.is_graph_input() and (graph := graph_of(source)) in self.holders:
            return f"input {list(graph.inputs).index(source)}"
        return "a constant" if source in self.fixed else tokens.get(source, f"? {source.name}")


def _match(ours: _Side, theirs: _Side) -> dict[ir.Value, ir.Value]:
    by_name = {v.name: v for v in ours.values()}
    matched = {by_name[v.name]: v for v in theirs.values() if v.name in by_name}
    tokens = {v: f"= {v.name}" for v in ours.values()}
    by_key: dict[_Key, list[ir.Value]] = defaultdict(list)
    for value in ours.values():
        key = ours.key(value, tokens)
        if value not in matched and key is not None and not ours.is_cast(value):
            by_key[key].append(value)
    their_tokens = {partner: tokens[value] for value, partner in matched.items()}
    for value in theirs.values():
        key = theirs.key(value, their_tokens)
        if value in their_tokens or key is None or theirs.is_cast(value) or not by_key.get(key):
            continue
        original = by_key[key].pop(0)
        matched[original] = value
        their_tokens[value] = tokens[original]
    return matched


def _pair(
    original: ir.Value,
    value: ir.Value,
    ours: _Side,
    theirs: _Side,
    name_of: dict[ir.Value, ir.Value],
    narrowed: bool = False,
) -> Pair:
    node = original.producer()
    around = [holder for holder, _ in ours.around(original)]
    readers: Iterable[ir.Node] = (user for user, _ in original.uses())
    if narrowed:
        readers = (r for user, _ in value.uses() if (r := _counterpart(user, theirs, name_of)) is not None)
    elif around and original.is_graph_output():
        readers = itertools.chain(readers, around[-1:])
    return Pair(
        name=original.name or "",
        partner=value.name or "",
        node=node.name or "" if node is not None else "",
        op=node.op_type if node is not None else "",
        dtype=dtype_name(element_type(value if narrowed else theirs.behind_casts(value))),
        sources=tuple(dict.fromkeys(_sources(value, theirs, name_of, narrowed))),
        readers=tuple(dict.fromkeys(_real(readers, ours))),
        narrowed=narrowed,
        within=tuple(holder.name or "" for holder in around),
        looped=any(holder.op_type in LOOPS for holder in around),
    )


def _sources(value: ir.Value, side: _Side, name_of: dict[ir.Value, ir.Value], narrowed: bool) -> Iterator[str]:
    """The partners of what the candidate computed a value from, Casts and values without a partner looked through."""
    if narrowed:
        yield side.behind_casts(value).name or ""
        return
    known = set(name_of)
    waiting, seen = [side.behind_casts(value)], set()  # behind the Cast that gives a model's output its declared type
    while waiting:
        made = waiting.pop()
        if made in seen:
            continue
        seen.add(made)
        for each in side.reads(made):
            read = side.fed(each)
            if read is None or read in side.fixed:
                continue
            if read in known or (side.narrows(read) and side.behind_casts(read) in known):
                yield read.name or ""
            else:
                waiting.append(read)


def _counterpart(node: ir.Node, side: _Side, name_of: dict[ir.Value, ir.Value]) -> ir.Node | None:
    for value in node.outputs:
        for candidate in (value, *(o for user, _ in value.uses() for o in user.outputs if side.is_cast(o))):
            if candidate in name_of:
                return name_of[candidate].producer()
    return None


def _real(nodes: Iterable[ir.Node], side: _Side) -> Iterator[str]:
    """The names of nodes that compute, those behind a Cast of the reference instead of the Cast."""
    for node in nodes:
        if node.outputs and side.is_cast(node.outputs[0]):
            yield from _real((user for user, _ in node.outputs[0].uses()), side)
        else:
            yield node.name or ""
