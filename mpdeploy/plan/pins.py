"""What must stay FP32, and why: the rules, the user's word, what a trial suspects, what a search found."""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from mpdeploy.errors import UsageError
from mpdeploy.graph.scope import nodes_under, subgraphs_of
from mpdeploy.graph.traits import Kind, kind_of
from mpdeploy.plan import exact, rules
from mpdeploy.plan.calibrate import Calibration
from mpdeploy.plan.evidence import Evidence
from mpdeploy.plan.groups import Group, Groups
from mpdeploy.plan.masks import Masks
from mpdeploy.plan.reasons import SOFT, Code, Reason
from mpdeploy.plan.tiny import feeds_log


@dataclass(frozen=True)
class Keep:
    """What the user keeps in FP32: nodes by name pattern (as in a shell), operators by type.

    ``trained`` names nodes that computed in FP32 in training; those of them that compute no floats do not count.
    """

    nodes: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    trained: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Suspicion:
    """Why a trial suspects a node; ``deep``: the products that feed it are under suspicion, too."""

    text: str
    deep: bool = False


@dataclass(frozen=True)
class Searched:
    """What a search found out, by the decision's node, in words: what it keeps in FP32, and what it found to do low.

    Only reasons in ``SOFT`` give way to what was found.
    """

    kept: Mapping[str, str] = field(default_factory=dict)
    freed: Mapping[str, str] = field(default_factory=dict)


KEEP_NOTHING = Keep()
NOTHING_SEARCHED = Searched()


def find_pins(evidence: Evidence, keep: Keep, masks: Masks, suspects: Mapping[str, Suspicion]) -> dict[int, Reason]:
    """Return the groups, by ``id``, that must be FP32, each with its first reason.

    Raises ``UsageError`` if a pattern of ``keep`` matches nothing.
    """
    pins: dict[int, Reason] = {}
    for group in evidence.groups.all:
        if group.refusal:
            pins[id(group)] = Reason(Code.TYPE_RULE, group.refusal)
    for group, reason in kept_by_user(evidence.groups, keep):
        pins.setdefault(id(group), reason)
    for group_id, reason in exact.exact_groups(evidence).items():
        pins.setdefault(group_id, reason)
    for value, reason in rules.value_reasons(evidence):
        producer = evidence.groups.producer.get(value)
        about = Reason(reason.code, f"'{value.name}': {reason.text}")
        if producer is not None and not (_is_heavy(producer) and evidence.bounds_of(value).assumed):
            _pin(producer, value, about, pins, masks)
        for group in evidence.groups.consumers.get(value, ()):
            if not _is_heavy(group) or rules.binds_products(evidence, value, reason):
                _pin(group, value, about, pins, masks)
        floored = reason.code is Code.EPSILON and feeds_log(evidence, value)
        if reason.code is Code.RECIPROCAL or floored:
            exact.walk_small(evidence, value, about, pins)
        if floored and evidence.stats_of(value) is None:
            exact.walk_back(evidence, value, about, pins, deep=True)  # how small it is, nobody says
    for group, reason in rules.group_reasons(evidence, masks.excused):
        pins.setdefault(id(group), reason)
    _pin_suspects(evidence, suspects, pins)
    return pins


def unsettled(pins: Mapping[int, Reason], groups: Groups, calibration: Calibration) -> Iterator[str]:
    """What data would settle: products in FP32 because of what is only assumed of their operands."""
    blind = (Code.RANGE_BOUND, Code.EPSILON)
    kept = [g for g in groups.all if _is_heavy(g) and id(g) in pins and pins[id(g)].code in blind]
    if kept and not calibration.data:
        some = "a product stays" if len(kept) == 1 else f"{len(kept)} products stay"
        yield f"{some} in FP32 for what its operands may reach ('{kept[0].name}'); --data would settle it"


def _pin(group: Group, value: ir.Value, reason: Reason, pins: dict[int, Reason], masks: Masks) -> None:
    if (value, id(group)) not in masks.excused:
        pins.setdefault(id(group), reason)


def _is_heavy(group: Group) -> bool:
    return kind_of(group.node) is Kind.HEAVY


def overrule(pins: dict[int, Reason], groups: Groups, searched: Searched) -> dict[int, Reason]:
    """Change the pins to what a search found; return the groups that it took from them, with the reason."""
    freed: dict[int, Reason] = {}
    for group in groups.all:
        before = pins.get(id(group))
        overruled = f"; {before}" if before else ""
        if before is not None and before.code not in SOFT:
            continue
        if group.name in searched.kept:
            pins[id(group)] = Reason(Code.SEARCHED_FP32, searched.kept[group.name] + overruled)
        elif group.name in searched.freed and before is not None:
            freed[id(group)] = Reason(Code.SEARCHED_LOW, searched.freed[group.name] + overruled)
            del pins[id(group)]
    return freed


def _pin_suspects(evidence: Evidence, suspects: Mapping[str, Suspicion], pins: dict[int, Reason]) -> None:
    for node in list(evidence.by_node):
        name = str(node.name)
        if name not in suspects:
            continue
        suspicion = suspects[name]
        reason = Reason(Code.MEASURED_DRIFT, f"{name}: {suspicion.text}")
        # Inside a subgraph nothing was measured: all of it is under suspicion.
        inside = [inner for graph in subgraphs_of(node) for inner in nodes_under(graph)]
        for group in (g for member in (node, *inside) for g in evidence.by_node.get(member, ())):
            pins.setdefault(id(group), reason)
            for operand in group.consumes:
                exact.walk_back(evidence, operand.value, reason, pins, deep=suspicion.deep)


def kept_by_user(groups: Groups, keep: Keep) -> Iterable[tuple[Group, Reason]]:
    """Yield the groups that the user keeps in FP32; ``UsageError`` if a pattern or operator matches nothing."""
    used: set[str] = set()
    for group in groups.all:
        name, op = str(group.node.name), group.node.op_type
        for pattern in keep.nodes:
            if fnmatch.fnmatchcase(name, pattern) or name == pattern:
                used.add(pattern)
                yield group, Reason(Code.USER, f"node pattern {pattern!r}")
        if op in keep.operators:
            used.add(op)
            yield group, Reason(Code.USER, f"operator {op}")
        if name in keep.trained:
            yield group, Reason(Code.USER, "it computed in FP32 in training")
    for pattern in (*keep.nodes, *keep.operators):
        if pattern not in used:
            raise UsageError(f"no float operator of the model matches {pattern!r}", remedy="see `mpdeploy inspect`")
