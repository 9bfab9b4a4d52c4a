"""The rules: each looks at the evidence and names what must stay FP32, with the reason.

A *value* that low precision cannot hold is FP32, and so is every operator that touches it.  An *operator* that
would go wrong inside is FP32, whatever its inputs and outputs.
"""

import math
from collections.abc import Callable, Iterator, Set

import onnx_ir as ir

from mpdeploy.graph.traits import Kind, builder_refuses, is_standard, kind_of
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.rounding import Loss
from mpdeploy.plan.bounds import Bounds
from mpdeploy.plan.evidence import Evidence
from mpdeploy.plan.groups import Group, Operand, is_constant
from mpdeploy.plan.inner import inner_reason
from mpdeploy.plan.reasons import Code, Reason
from mpdeploy.plan.tiny import reciprocal

ValueRule = Callable[[Evidence, ir.Value], Reason | None]
GroupRule = Callable[[Evidence, Group], Reason | None]
Excused = Set[tuple[ir.Value, int]]

_LOSS_LIMIT = 0.01  # relative: far over rounding, far under what anybody would accept
_ADDING = frozenset({"Add", "Sub", "Sum"})
_FACTORS = frozenset({"Mul", "PRelu", "Mean"})
_BY_NORM = frozenset({Kind.HEAVY, Kind.MOVE, Kind.NORM, Kind.CONTROL})
_OUTWARD = frozenset({("Clip", 1), ("Clip", 2), ("Max", 0), ("Max", 1), ("Min", 0), ("Min", 1)})


def range_of_value(evidence: Evidence, value: ir.Value) -> Reason | None:
    """A value whose finite elements reach beyond the format's largest number."""
    bounds, limit = evidence.bounds_of(value), evidence.low.max
    if bounds.magnitude <= limit:
        return None
    holds = f"{evidence.low.value} holds {limit:.6g}"
    stats = evidence.stats_of(value)
    if stats is not None:
        margin = evidence.policy.margin
        if evidence.calibration.trained:
            text = f"|x| reaches {stats.absmax:.3g}, {holds} (margin {margin:g})"
            return Reason(Code.RANGE_TRAINED, text)
        text = f"|x| reaches {stats.absmax:.3g} in sample {stats.worst_sample}, {holds} (margin {margin:g})"
        return Reason(Code.RANGE_MEASURED, text)
    if _counts(bounds):
        return None  # whole numbers without a known end: `integers` says it better
    how = "may reach" if bounds.assumed else "reaches"
    return Reason(Code.RANGE_BOUND, f"|x| {how} {bounds.magnitude:.3g}, {holds}")


def binds_products(evidence: Evidence, value: ir.Value, reason: Reason) -> bool:
    """Tell whether what keeps a value in FP32 keeps the products that read it there, too.

    An assumption that says nothing (division by what may be zero) keeps other operators in FP32, but not the
    arithmetic that low precision is for.  One that is outgrown does: by a square, an exponential, a large factor.
    """
    bounds = evidence.bounds_of(value)
    # What a format of FP32's own range cannot hold breaks the FP32 model as well.
    narrower = evidence.low.max < Format.FP32.max / 2
    return not bounds.assumed or (reason.code is Code.RANGE_BOUND and narrower and math.isfinite(bounds.magnitude))


def _counts(bounds: Bounds) -> bool:
    """Whole numbers that FP32 itself counts exactly, or without a known end; a mask of -1e9 counts nothing."""
    return bounds.integral and (bounds.magnitude <= Format.FP32.max_exact_integer or math.isinf(bounds.magnitude))


def integers(evidence: Evidence, value: ir.Value) -> Reason | None:
    """A value whose elements are whole numbers, larger than the format counts exactly."""
    bounds, limit = evidence.bounds_of(value), evidence.low.max_exact_integer
    if not _counts(bounds) or bounds.magnitude <= limit or bounds.assumed:
        return None
    size = f"up to {bounds.magnitude:.6g}" if bounds.magnitude < 1e300 else "of unknown size"
    return Reason(Code.INTEGER, f"whole numbers {size}, {evidence.low.value} counts exactly to {limit}")


def vanishing(evidence: Evidence, value: ir.Value) -> Reason | None:
    """A value all of whose elements are smaller than the format's smallest normal number."""
    smallest = evidence.low.smallest_normal
    stats = evidence.stats_of(value)
    top = stats.absmax if stats is not None else evidence.bounds_of(value).magnitude
    if not 0 < top < smallest:
        return None
    return Reason(Code.VANISHING, f"|x| is at most {top:.3g}, {evidence.low.value} is exact from {smallest:.3g}")


def constants(evidence: Evidence, group: Group, excused: Excused) -> Reason | None:
    """A stored tensor that the operator reads and that the format cannot hold well enough for this use."""
    for operand in group.consumes:
        facts = evidence.constants.get(operand.value)
        if facts is None or not isinstance(operand.user, ir.Node) or (operand.value, id(group)) in excused:
            continue
        loss, name, low = facts.loss, operand.value.name, evidence.low
        outward = (operand.user.op_type, operand.index) in _OUTWARD
        if loss.overflowed and not outward:
            return Reason(Code.CONSTANT_RANGE, f"'{name}' holds {loss.absmax:.6g}, {low.value} ends at {low.max:.6g}")
        counts = facts.integral and low.max_exact_integer < loss.absmax <= Format.FP32.max_exact_integer
        if counts and loss.worst_relative > 0 and not outward:
            return Reason(Code.INTEGER, f"'{name}' holds whole numbers up to {loss.absmax:.6g}")
        error = _felt(evidence, operand, loss)
        if error > _LOSS_LIMIT:
            text = f"'{name}' loses {error:.1%} ({loss.vanished} of {loss.size} vanish, {loss.subnormal} subnormal)"
            return Reason(Code.CONSTANT_LOSS, text)
    return None


def _felt(evidence: Evidence, operand: Operand, loss: Loss) -> float:
    """Return the relative error that a stored tensor's rounding makes where it goes.

    Factors and what is moved count by their norm: a few tiny elements are nothing beside the others.  A summand counts
    beside what it is added to.  Elsewhere (a divisor, an exponent, a threshold) each element counts for itself.
    """
    node = operand.user
    if not isinstance(node, ir.Node) or node.op_type == "BatchNormalization":
        return 0.0  # the parameters of a batch norm work together: see `inner`
    if node.op_type in _ADDING:
        if loss.size == 1:
            return 0.0  # an epsilon: it matters where the sum is divided by or rooted, see `tiny`
        others = [v for v in node.inputs if v is not None and v is not operand.value]
        beside = max((_size(evidence, v) for v in others), default=0.0)
        return loss.norm_error * loss.absmax / max(beside, loss.absmax) if loss.absmax else 0.0
    factor = node.op_type in _FACTORS or (node.op_type == "Div" and operand.index == 0)
    return loss.norm_error if factor or kind_of(node) in _BY_NORM else loss.worst_relative


def _size(evidence: Evidence, value: ir.Value) -> float:
    """A value's largest magnitude, measured or else bounded."""
    stats = evidence.stats_of(value)
    return stats.absmax if stats is not None else evidence.bounds_of(value).magnitude


def attributes(evidence: Evidence, group: Group) -> Reason | None:
    """A float attribute that the format cannot hold."""
    node, low = group.node, evidence.low
    if not is_standard(node) or kind_of(node) in (Kind.NORM, Kind.CONTROL):
        return None
    for name, attribute in node.attributes.items():
        if attribute.type is not ir.AttributeType.FLOAT or node.op_type == "Clip" or name == "epsilon":
            continue  # a bound beyond the range bounds nothing; epsilons belong to `inner`
        number = abs(attribute.as_float())
        if low.max < number < float("inf") or 0 < number < low.smallest_normal:
            return Reason(Code.ATTRIBUTE, f"{name} = {attribute.as_float():.6g}")
    return None


def builder(evidence: Evidence, group: Group) -> Reason | None:
    """An operator that the engine builders refuse in the low format."""
    node, low = group.node, evidence.low
    if not (evidence.target.builds_engines and builder_refuses(node, low)):
        return None
    return Reason(Code.BUILDER, f"TensorRT for RTX builds no {low.value} {node.op_type} of this form", limit="rtx")


def policy_list(evidence: Evidence, group: Group) -> Reason | None:
    """An operator that the policy keeps in FP32, unless it may go low where it is proved to fit."""
    node = group.node
    if node.op_type not in evidence.policy.fp32_operators:
        return None
    if evidence.policy.unless_proved and _is_proved(evidence, group):
        return None
    return Reason(Code.POLICY, f"{node.op_type}, policy {evidence.policy.name.value}")


def _is_proved(evidence: Evidence, group: Group) -> bool:
    """All operands have bounds that rest on proof or data; the other rules then say whether they fit."""
    values = [*group.produces, *(o.value for o in group.consumes)]
    return all(is_constant(v) or not evidence.bounds_of(v).assumed for v in values)


VALUE_RULES: tuple[ValueRule, ...] = (range_of_value, integers, vanishing, reciprocal)
GROUP_RULES: tuple[GroupRule, ...] = (builder, attributes, inner_reason, policy_list)
_RULES_WITHOUT_HAZARDS: tuple[GroupRule, ...] = (builder,)  # no policy makes a kernel


def value_reasons(evidence: Evidence) -> Iterator[tuple[ir.Value, Reason]]:
    """Yield every computed value that must stay FP32, with the first reason that says so."""
    rules = VALUE_RULES if evidence.policy.hazards else (integers,)
    for value in evidence.groups.values:
        if is_constant(value):
            continue
        for rule in rules:
            reason = rule(evidence, value)
            if reason is not None:
                yield value, reason
                break


def group_reasons(evidence: Evidence, excused: Excused) -> Iterator[tuple[Group, Reason]]:
    """Yield every group that must stay FP32 for reasons of its own, with the first that says so.

    ``excused`` holds the pairs of a value and a group's ``id`` that a mask excuses (see ``masks``).
    """
    rules = GROUP_RULES if evidence.policy.hazards else _RULES_WITHOUT_HAZARDS
    for group in evidence.groups.all:
        reason = constants(evidence, group, excused)
        for rule in rules:
            reason = reason or rule(evidence, group)
        if reason is not None:
            yield group, reason
