"""A model cut into pieces that run one after the other, so that its inner values can be read in bounded memory.

Every node runs once and every weight is loaded once, whatever number of values is watched.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from mpdeploy.graph.patience import carried
from mpdeploy.graph.scope import nodes_under, subgraphs_of
from mpdeploy.runtime.runner import Array


@dataclass(frozen=True)
class Segment:
    """A piece: a model of its own, the values it takes and gives by name, and those nobody needs after it."""

    model: ir.Model
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    spent: tuple[str, ...]


def segments(
    model: ir.Model, watched: Sequence[str], limit: int, size_of: Callable[[ir.Value], int]
) -> Iterator[Segment]:
    """Yield the pieces whose watched values (names of main-graph values) take about ``limit`` bytes each.

    ``size_of`` is asked for the values of a piece when that piece is wanted: what earlier pieces gave is known by then.
    """
    nodes = list(model.graph)
    wanted = set(watched)
    fixed = fixed_values(model.graph)
    last_use = _last_uses(nodes, fixed)
    live = {v.name or "": v for v in model.graph.inputs}
    gives: dict[str, ir.Value] = {}
    made: dict[str, ir.Value] = {}
    size = 0
    for index, node in enumerate(nodes):
        for value in node.outputs:
            if value.name and value not in fixed:
                made[value.name] = value
                if value.name in wanted:
                    gives[value.name] = value
                    size += size_of(value)
        is_last = index == len(nodes) - 1
        if size < limit and not is_last:
            continue
        passed_on = {n: v for n, v in (live | made).items() if last_use.get(v, -1) > index}
        if not is_last and not all(_can_pass(v) for v in passed_on.values()):
            continue
        outputs = gives | {n: v for n, v in passed_on.items() if n in made}
        if outputs:
            yield _piece(model, live, outputs, passed_on)
        live, made, gives, size = passed_on, {}, {}, 0


def from_the_start(segment: Segment, model: ir.Model) -> Segment:
    """Return a piece with the same outputs that needs nothing but the model's own inputs."""
    values = _named(model.graph)
    whole = _extracted(model, list(model.graph.inputs), [values[name] for name in segment.outputs])
    return replace(segment, model=whole, inputs=_names(whole.graph.inputs))


def without(segment: Segment, plain: ir.Model, hidden: Collection[str]) -> Segment:
    """Return the piece of ``plain``, a model with fewer outputs of inner values, that does the same but for those."""
    outputs = tuple(name for name in segment.outputs if name not in hidden)
    values = _named(plain.graph)
    model = _extracted(plain, [values[n] for n in segment.inputs], [values[n] for n in outputs])
    return replace(segment, model=model, inputs=_names(model.graph.inputs), outputs=outputs)


def _named(graph: ir.Graph) -> dict[str, ir.Value]:
    return {v.name or "": v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}


def fixed_values(graph: ir.Graph, outer: Collection[ir.Value] = frozenset()) -> set[ir.Value]:
    """Return the values of a graph that no input has a part in: weights, and what is computed from them alone.

    ``outer`` are those of the graphs around it.
    """
    inputs = set(graph.inputs)
    fixed = {v for v in graph.initializers.values() if v not in inputs} | set(outer)
    for node in graph:
        if node.op_type.startswith(("Random", "Bernoulli", "Multinomial")) or any(True for _ in subgraphs_of(node)):
            continue
        if all(v is None or v in fixed for v in node.inputs):
            fixed.update(node.outputs)
    return fixed


def symbols(inputs: Sequence[ir.Value], feed: Mapping[str, Array]) -> dict[str, int]:
    """Return the size that each symbolic dimension of the inputs has in a feed."""
    found: dict[str, int] = {}
    for value in inputs:
        array = feed.get(value.name or "")
        if array is None or value.shape is None or len(value.shape) != array.ndim:
            continue
        for dim, size in zip(value.shape, array.shape, strict=True):
            if not isinstance(dim, int) and dim.value is not None:
                found[str(dim.value)] = size
    return found


def _piece(
    model: ir.Model,
    live: Mapping[str, ir.Value],
    outputs: Mapping[str, ir.Value],
    passed_on: Mapping[str, ir.Value],
) -> Segment:
    piece = _extracted(model, list(live.values()), list(outputs.values()))
    spent = tuple(n for n in (*live, *outputs) if n not in passed_on)
    return Segment(piece, _names(piece.graph.inputs), tuple(outputs), spent)


def _extracted(model: ir.Model, inputs: list[ir.Value], outputs: list[ir.Value]) -> ir.Model:
    graph = ir.convenience.extract(model.graph, inputs, outputs)
    used = _read_names(graph)
    graph.inputs[:] = [v for v in graph.inputs if v.name in used]
    declared = {v.name for v in model.graph.inputs}
    for value in graph.inputs:
        if value.name not in declared and not _counts(value):
            value.shape = None  # what a file says of inner shapes may be stale
    return carried(model, ir.Model(graph, ir_version=model.ir_version))


def _counts(value: ir.Value) -> bool:
    """Whether a value is one integer, or a vector of a known number of them, such as the sizes of a Resize.

    The runtime works out shapes from such values before it runs, and asks for their own.
    """
    shape = value.shape
    if shape is None or value.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
        return False
    return len(shape) == 0 or (len(shape) == 1 and isinstance(shape[0], int))


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(v.name or "" for v in values)


def _read_names(graph: ir.Graph) -> set[str]:
    names = {v.name or "" for v in graph.outputs}
    for node in nodes_under(graph):
        names.update(v.name or "" for v in node.inputs if v is not None)
        for inner in subgraphs_of(node):
            names.update(v.name or "" for v in inner.outputs)
    return names


def _last_uses(nodes: Sequence[ir.Node], fixed: set[ir.Value]) -> dict[ir.Value, int]:
    """The index of the last main-graph node that reads a value, itself or inside its subgraphs."""
    last: dict[ir.Value, int] = {}
    for index, node in enumerate(nodes):
        for value in _reads(node):
            if value not in fixed:
                last[value] = index
    return last


def _reads(node: ir.Node) -> Iterator[ir.Value]:
    yield from (v for v in node.inputs if v is not None)
    for graph in subgraphs_of(node):
        for inner in nodes_under(graph):
            yield from (v for v in inner.inputs if v is not None)
        yield from graph.outputs
        for inner in nodes_under(graph):
            for deeper in subgraphs_of(inner):
                yield from deeper.outputs


def _can_pass(value: ir.Value) -> bool:
    """Whether a value can go from one piece to the next: a tensor of known type."""
    return isinstance(value.type, ir.TensorType) and value.type.dtype != ir.DataType.UNDEFINED
