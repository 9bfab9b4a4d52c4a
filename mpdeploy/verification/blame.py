"""Who is to blame for drift: the nodes that broke, and those that add the most error."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from mpdeploy.numerics.formats import LOW_FORMATS, Format
from mpdeploy.plan.record import Decision, PrecisionPlan
from mpdeploy.verification.layers import Layer

CULPRITS = 12
_SHARE = 0.8  # of the added error (as squares) that the nodes named must account for


class Kind(Enum):
    """How a node does harm."""

    OVERFLOW = "its FP32 values are beyond the format's range"
    BROKE = "it made NaN or infinity of values that FP32 keeps finite"
    DECIDED = "its integers or booleans came out differently"
    DRIFT = "it adds error"


@dataclass(frozen=True)
class Culprit:
    """A node that does harm: what kind, in which format, at which value, in words.

    ``largest`` is the FP32 magnitude there, ``added`` the norm-relative error it adds (None if not finite).
    ``code`` and ``reason`` are the plan's, empty without a plan.  ``keep`` are the nodes to keep in FP32.
    """

    node: str
    op: str
    value: str
    format: str
    kind: Kind
    text: str
    largest: float
    added: float | None
    code: str
    reason: str
    keep: tuple[str, ...]


@dataclass(frozen=True)
class Repair:
    """A list of nodes to keep in FP32, and what came of converting with it and verifying again.

    ``nodes`` are names of the reference's nodes, ``command`` is the conversion to run; ``passed`` whether its result
    is within the same budget, ``error`` the largest norm-relative error of its outputs (None if not finite).
    ``low`` of its ``operators`` run in the low format; ``rounds`` conversions were tried.
    """

    nodes: tuple[str, ...]
    command: str
    passed: bool
    error: float | None
    low: int
    operators: int
    rounds: int


@dataclass(frozen=True)
class Blame:
    """The drift along the graph, the culprits in order of guilt, and a repair if one was asked for and found.

    ``first_broken`` is the value where NaN or infinity came up first; ``unpaired`` counts the reference's values
    without a partner, ``hidden`` those inside branches and loop bodies that no run reached or could show.
    """

    layers: tuple[Layer, ...]
    culprits: tuple[Culprit, ...]
    first_broken: str
    unpaired: int
    hidden: int
    repair: Repair | None = None


def culprits_of(layers: Sequence[Layer], plan: PrecisionPlan | None, limit: int = CULPRITS) -> tuple[Culprit, ...]:
    """Return at most ``limit`` culprits, the first node that broke ahead, then by how much error a node adds."""
    decisions = _by_node(plan)
    by_partner = {layer.partner: layer for layer in layers}
    found: dict[str, Culprit] = {}
    for layer, kind in _guilty(layers, by_partner):
        culprit = _culprit(layer, kind, by_partner, decisions)
        found.setdefault(culprit.node, culprit)
        if len(found) == limit:
            break
    return tuple(found.values())


def first_broken(layers: Sequence[Layer]) -> Layer | None:
    """Return the first value, in order of execution, that is finite in the reference only."""
    return next(iter(_origins(layers, {layer.partner: layer for layer in layers})), None)


def _guilty(layers: Sequence[Layer], by_partner: Mapping[str, Layer]) -> Iterator[tuple[Layer, Kind]]:
    origins = _origins(layers, by_partner)
    for layer in origins:
        yield layer, Kind.OVERFLOW if _beyond_range(layer) else Kind.BROKE
    if origins:
        return
    for layer in layers:
        if layer.exact and layer.error and not _inherits(layer, by_partner, lambda s: s.exact and bool(s.error)):
            yield layer, Kind.DECIDED
    adding = sorted((layer for layer in layers if layer.added and not layer.exact), key=_added, reverse=True)
    total, so_far = sum(_added(layer) ** 2 for layer in adding), 0.0
    for layer in adding:
        if so_far > _SHARE * total:
            return
        so_far += _added(layer) ** 2
        yield layer, Kind.DRIFT


def _origins(layers: Sequence[Layer], by_partner: Mapping[str, Layer]) -> list[Layer]:
    """The values that broke although nothing they were computed from had."""
    earliest = _first_iterations(layers)

    def before(source: Layer, layer: Layer) -> bool:
        if source.iteration is None or layer.iteration is None:
            return source.broken > 0
        return source.iteration <= layer.iteration

    return [
        layer
        for layer in layers
        if layer.broken
        and not _inherits(layer, by_partner, functools.partial(before, layer=layer))
        and (layer.iteration is None or layer.iteration <= earliest[layer.within[0]])
    ]


def _first_iterations(layers: Sequence[Layer]) -> dict[str, int]:
    """In which iteration of each outermost loop something broke first: what broke later may have been fed with it."""
    first: dict[str, int] = {}
    for layer in layers:
        if layer.iteration is not None:
            first[layer.within[0]] = min(layer.iteration, first.get(layer.within[0], layer.iteration))
    return first


def _inherits(layer: Layer, by_partner: Mapping[str, Layer], faulty: Callable[[Layer], bool]) -> bool:
    return any(source in by_partner and faulty(by_partner[source]) for source in layer.sources)


def _culprit(layer: Layer, kind: Kind, by_partner: Mapping[str, Layer], decisions: Mapping[str, Decision]) -> Culprit:
    nodes = layer.readers if layer.narrowed or not layer.node else (layer.node,)
    node = nodes[0] if nodes else layer.value
    decision = decisions.get(node)
    keep = dict.fromkeys(nodes)
    if kind is Kind.OVERFLOW:
        keep |= dict.fromkeys(layer.readers)
    elif kind is not Kind.DRIFT or _amplifies(layer, by_partner):
        keep |= dict.fromkeys(upstream([layer], by_partner))
    return Culprit(
        node=node,
        op=layer.op if node == layer.node else "",
        value=layer.value,
        format=layer.format,
        kind=kind,
        text=_text(layer, kind, by_partner),
        largest=layer.largest,
        added=layer.added,
        code=decision.code if decision else "",
        reason=decision.reason if decision else "",
        keep=tuple(n for n in keep if n),
    )


def upstream(layers: Sequence[Layer], by_partner: Mapping[str, Layer]) -> Iterator[str]:
    """Yield the nodes that computed what these layers' nodes read."""
    for layer in layers:
        for source in layer.sources:
            if source in by_partner and by_partner[source].node:
                yield by_partner[source].node


def _text(layer: Layer, kind: Kind, by_partner: Mapping[str, Layer]) -> str:
    where = f"'{layer.value}'" + (" cast down" if layer.narrowed else "")
    where += f" inside '{layer.within[-1]}'" if layer.within else ""
    sample = layer.sample if layer.iteration is None else f"iteration {layer.iteration} of {layer.sample}"
    if kind is Kind.OVERFLOW:
        limit = _format(layer).max
        return f"{where} reaches {layer.largest:.4g} in FP32, {layer.format} ends at {limit:.5g}; first in {sample}"
    if kind is Kind.BROKE:
        vanished = sum(by_partner[s].vanished for s in layer.sources if s in by_partner)
        cause = f", {vanished} values that it reads became 0" if vanished else ""
        text = f"{layer.broken} of {layer.elements} values of {where} became NaN or infinite"
        return f"{text}{cause}; FP32 reaches {layer.largest:.4g}; first in {sample}"
    if kind is Kind.DECIDED:
        return f"{100 * (layer.error or 0):.3g} % of {where} came out differently"
    grows = " (small differences of large numbers)" if _amplifies(layer, by_partner) else ""
    return f"{where} has an error of {layer.error:.2g}, of which it added {layer.added:.2g}{grows}"


def _amplifies(layer: Layer, by_partner: Mapping[str, Layer]) -> bool:
    """Whether the error is far more than rounding the result could make: the inputs' rounding was blown up."""
    return layer.added is not None and layer.added > 16 * _format(layer).unit_roundoff and bool(layer.sources)


def _beyond_range(layer: Layer) -> bool:
    return layer.largest >= _format(layer).overflow_threshold


def _format(layer: Layer) -> Format:
    return next((f for f in LOW_FORMATS if f.value == layer.format), Format.FP32)


def _added(layer: Layer) -> float:
    return layer.added if layer.added is not None and math.isfinite(layer.added) else 0.0


def _by_node(plan: PrecisionPlan | None) -> dict[str, Decision]:
    """Each node's decision; where a node has several, that of its main operands."""
    if plan is None:
        return {}
    found: dict[str, Decision] = {}
    for decision in plan.decisions:
        found.setdefault(decision.node, decision)
    return found
