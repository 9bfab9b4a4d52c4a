"""Floats that carry integers, indices, coordinates and large angles: found by walking back from their use.

A float that becomes an index or a coordinate must not be rounded on its way: the walk goes from the operand that
needs it back through arithmetic and moves, and stops at products of weights and activations (whose rounding is the
ordinary one), at constants and at the model's inputs.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from mpdeploy.graph.scope import subgraphs_of
from mpdeploy.graph.traits import COORDINATE_OPERANDS, Kind, is_standard, kind_of
from mpdeploy.graph.types import element_type
from mpdeploy.plan.evidence import Evidence
from mpdeploy.plan.groups import Group, is_float
from mpdeploy.plan.reasons import Code, Reason

_PASSED = frozenset({Kind.MOVE, Kind.POINTWISE, Kind.SUM, Kind.CONTROL})
_ROUNDING = frozenset({"Floor", "Ceil", "Round", "Mod"})
_ANGLES = frozenset({"Sin", "Cos", "Tan"})
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_LOGIC = frozenset(
    {"And", "Or", "Not", "Xor", "Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Expand", "Where"}
)
_INTEGERS = frozenset(d for d in ir.DataType if d.name.startswith(("INT", "UINT")))
_INDICES = frozenset({ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64})
_ANGLE_TOLERANCE = 0.01  # radians


def exact_groups(evidence: Evidence) -> dict[int, Reason]:
    """Return the groups, by ``id``, that must not round because an exact use hangs on them, with the reason."""
    pins: dict[int, Reason] = {}
    for use in _uses(evidence):
        pins.setdefault(id(use.group), use.reason)
        walk_back(evidence, use.value, use.reason, pins, deep=use.deep)
    return pins


def walk_back(
    evidence: Evidence, start: ir.Value, reason: Reason, pins: dict[int, Reason], *, deep: bool = False
) -> None:
    """Pin the arithmetic that leads to a value, back to weighted products, constants and inputs.

    ``deep`` pins the products, too, and stops behind them.
    """
    pending, seen = [start], set()
    while pending:
        value = pending.pop()
        group = evidence.groups.producer.get(value)
        if group is None or id(group) in seen:
            continue
        passed = _is_passed(group.node)
        if not passed and not (deep and kind_of(group.node) is Kind.HEAVY):
            continue
        seen.add(id(group))
        pins.setdefault(id(group), reason)
        if not passed:
            continue
        pending += [operand.value for operand in group.consumes]
        if group.operand_set == "result":  # a format-changing operator has its inputs in another group
            pending += [v for v in group.node.inputs if is_float(v) and v is not None]
            for compare in _comparisons(group.node.inputs[0]):
                for compared in evidence.by_node.get(compare, ()):
                    pins.setdefault(id(compared), reason)
                    pending += [operand.value for operand in compared.consumes]


def walk_small(evidence: Evidence, start: ir.Value, reason: Reason, pins: dict[int, Reason]) -> None:
    """Pin what makes a value whose small magnitudes decide, back to where they are no longer small.

    Only what was measured counts: a product that is seen to give such magnitudes is pinned like any other operator.
    A sum is small only where all of its terms are.
    """
    pending, seen = [(start, False)], set()
    while pending:
        value, summed = pending.pop()
        stats, group = evidence.stats_of(value), evidence.groups.producer.get(value)
        if group is None or id(group) in seen or stats is None:
            continue
        if (stats.absmax if summed else stats.smallest) >= evidence.low.smallest_normal:
            continue
        seen.add(id(group))
        pins.setdefault(id(group), reason)
        if _is_passed(group.node):
            summed = summed or kind_of(group.node) is Kind.SUM
            pending += [(operand.value, summed) for operand in group.consumes]


def _is_passed(node: ir.Node) -> bool:
    return kind_of(node) in _PASSED or node.op_type == "Range" or _is_outer_product(node)


def _is_outer_product(node: ir.Node) -> bool:
    """A product of positions and frequencies is written as MatMul or Einsum over a dimension of size 1, or none."""
    if node.op_type == "MatMul" and is_standard(node):
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        return shape is not None and len(shape) > 0 and shape[-1] == 1
    if node.op_type == "Einsum":
        left, _, right = node.attributes["equation"].as_string().replace(" ", "").partition("->")
        return bool(right) and set(left) - {",", "."} == set(right) - {"."}
    return False


@dataclass(frozen=True)
class _Use:
    """A use that must be exact; ``deep``: even the product that makes the value must be."""

    group: Group
    value: ir.Value
    reason: Reason
    deep: bool = False


def _uses(evidence: Evidence) -> Iterator[_Use]:
    for group in evidence.groups.all:
        for operand in group.consumes:
            if not isinstance(operand.user, ir.Node):
                continue
            reason = _reason(evidence, operand.user, operand.index, operand.value)
            if reason is not None:
                yield _Use(group, operand.value, reason, _is_deep(evidence, operand.user, operand.value, reason))
    yield from _decisions(evidence)


def _is_deep(evidence: Evidence, node: ir.Node, value: ir.Value, reason: Reason) -> bool:
    """An index must be right whatever made it, and so must an angle that was measured to be large."""
    if reason.code is Code.ANGLE:
        return evidence.stats_of(value) is not None
    return node.op_type == "Cast" and ir.DataType(node.attributes["to"].as_int()) in _INDICES


def _reason(evidence: Evidence, node: ir.Node, index: int, value: ir.Value) -> Reason | None:
    if not (is_standard(node) or node.op_type in COORDINATE_OPERANDS):
        return None
    op, low = node.op_type, evidence.low
    bounds = evidence.bounds_of(value)
    if bounds.integral and bounds.magnitude <= low.max_exact_integer:
        return None  # small integers are exact in any format
    if index in COORDINATE_OPERANDS.get(op, ()):
        return Reason(Code.COORDINATE, f"{op} '{node.name}' reads '{value.name}' as coordinates or sizes")
    if op == "Cast" and ir.DataType(node.attributes["to"].as_int()) in _INTEGERS:
        return Reason(Code.INDEX, f"Cast '{node.name}' makes integers of '{value.name}'")
    if op in _ROUNDING:
        return Reason(Code.INDEX, f"{op} '{node.name}' makes whole numbers of '{value.name}'")
    if op in _ANGLES and bounds.magnitude * low.unit_roundoff > _ANGLE_TOLERANCE:
        size = f"up to {bounds.magnitude:.3g}" if math.isfinite(bounds.magnitude) else "of unknown size"
        return Reason(Code.ANGLE, f"{op} '{node.name}' reads angles {size}")
    return None


def _decisions(evidence: Evidence) -> Iterator[_Use]:
    """Walk back from conditions of If and Loop, and from NonZero and Compress, to the floats they compare."""
    for node in evidence.by_node:
        if node.op_type == "NonZero":
            for group in evidence.by_node[node]:
                value = group.consumes[0].value
                yield _Use(group, value, Reason(Code.DECISION, f"NonZero '{node.name}' counts '{value.name}'"))
    for holder, condition in _conditions(evidence):
        for compare in _comparisons(condition):
            for group in evidence.by_node.get(compare, ()):
                for operand in group.consumes:
                    text = f"{compare.op_type} '{compare.name}' decides for {holder.op_type} '{holder.name}'"
                    yield _Use(group, operand.value, Reason(Code.DECISION, text), deep=True)


def _conditions(evidence: Evidence) -> Iterator[tuple[ir.Node, ir.Value]]:
    seen: set[ir.Graph] = set()
    pending = [graph for g in evidence.groups.all if isinstance(graph := g.node.graph, ir.Graph)]
    for graph in pending:
        if graph in seen:
            continue
        seen.add(graph)
        for node in graph:
            inner = list(subgraphs_of(node))
            pending += [g for g in inner if g not in seen]
            if node.op_type in ("If", "NonZero") and node.inputs[0] is not None:
                yield node, node.inputs[0]
            if node.op_type == "Compress" and node.inputs[1] is not None:
                yield node, node.inputs[1]
            if node.op_type == "Loop":
                if node.inputs[1] is not None:
                    yield node, node.inputs[1]
                yield node, inner[0].outputs[0]


def _comparisons(condition: ir.Value | None) -> Iterator[ir.Node]:
    pending, seen = [condition], set()
    while pending:
        value = pending.pop()
        node = value.producer() if value is not None else None
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.op_type in _COMPARISONS:
            yield node
        elif node.op_type in _LOGIC or node.op_type.startswith("Reduce"):
            pending += [v for v in node.inputs if v is not None and element_type(v) is not ir.DataType.FLOAT]
