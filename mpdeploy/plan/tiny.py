"""Small numbers that decide: what is divided by, or whose logarithm is taken, and what keeps it from zero.

A root of tiny numbers is itself no harm: what vanishes gives 0 for a number near 0.  It matters where the root is
divided by or its logarithm taken.
"""

import onnx_ir as ir

from mpdeploy.graph.traits import RECIPROCAL_OPERANDS, Kind, is_standard, kind_of
from mpdeploy.plan.constants import scalar
from mpdeploy.plan.evidence import Evidence
from mpdeploy.plan.groups import Group
from mpdeploy.plan.reasons import Code, Reason

_GUARD_LIMIT = 0.2  # an epsilon that is a little off guards as well
_GUARDS = frozenset({"Add", "Sub", "Max", "Clip", "Where"})
_SCALING = frozenset({"Mul", "Div", "Neg", "Abs", "Sqrt", "Pow"})  # their result is tiny where their operand is
_DEPTH = 12


def reciprocal(evidence: Evidence, value: ir.Value) -> Reason | None:
    """A value that is divided by, or whose logarithm or root is taken, with magnitudes that would vanish."""
    readers = [g for g in evidence.groups.consumers.get(value, ()) if _decides(g, value)]
    if not readers:
        return None
    smallest = evidence.low.smallest_normal
    guard = _vanishing_guard(evidence, value)
    if guard is not None:
        return Reason(Code.EPSILON, f"{guard:.3g} keeps {readers[0].node.op_type} '{readers[0].node.name}' from zero")
    stats, bounds = evidence.stats_of(value), evidence.bounds_of(value)
    if bounds.low > 0 or bounds.high < 0:
        least = bounds.away_from_zero
        if stats is not None:
            least = min(max(least, stats.smallest / evidence.policy.margin), stats.smallest)
    elif stats is not None:
        least = stats.smallest
    else:
        return None  # nothing is known: the policy's list decides
    if least >= smallest:
        return None
    node = readers[0].node
    return Reason(Code.RECIPROCAL, f"{node.op_type} '{node.name}' reads magnitudes down to {least:.3g}")


def feeds_log(evidence: Evidence, value: ir.Value) -> bool:
    """Tell whether a logarithm is taken of a value."""
    return any(
        o.value is value and isinstance(o.user, ir.Node) and o.user.op_type == "Log"
        for g in evidence.groups.consumers.get(value, ())
        for o in g.consumes
    )


def _vanishing_guard(evidence: Evidence, value: ir.Value) -> float | None:
    """Return the small constant that keeps a value away from zero, if the format cannot hold it."""
    node = value.producer()
    if node is None or node.op_type not in _GUARDS:
        return None
    for operand in node.inputs:
        facts = evidence.constants.get(operand) if operand is not None else None
        tiny = facts is not None and 0 < facts.loss.absmax < evidence.low.smallest_normal
        if facts is not None and tiny and facts.loss.worst_relative > _GUARD_LIMIT:
            return facts.loss.absmax
    return None


def _decides(group: Group, value: ir.Value) -> bool:
    """Tell whether small magnitudes of a value decide the result of an operator that the group holds."""
    return any(
        o.value is value and isinstance(o.user, ir.Node) and _matters(o.user, o.index, _DEPTH) for o in group.consumes
    )


def _matters(node: ir.Node, index: int, depth: int) -> bool:
    if not is_standard(node):
        return False
    if index in RECIPROCAL_OPERANDS.get(node.op_type, ()):
        return True
    exponent = scalar(node.inputs[1]) if node.op_type == "Pow" and index == 0 else None
    if exponent is not None and exponent < 0:
        return True
    is_root = node.op_type == "Sqrt" or (exponent is not None and exponent < 1)
    return is_root and _reaches(node.outputs[0], depth)


def _reaches(value: ir.Value, depth: int) -> bool:
    """Tell whether a value comes, as small as it is, to where small magnitudes decide: not through sums or guards."""
    if depth == 0:
        return False
    for node, index in value.uses():
        if _matters(node, index, depth - 1):
            return True
        moved = kind_of(node) is Kind.MOVE and node.op_type not in _GUARDS
        if (moved or node.op_type in _SCALING) and any(_reaches(v, depth - 1) for v in node.outputs):
            return True
    return False
