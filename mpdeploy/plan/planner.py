"""Graph, policy and statistics in; a precision plan out."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import onnx_ir as ir

from mpdeploy.errors import ModelError, UsageError
from mpdeploy.graph import io
from mpdeploy.graph.operators import opset_of, signature
from mpdeploy.graph.opset import NEWEST_OPSET, raised
from mpdeploy.graph.scope import all_nodes
from mpdeploy.graph.traits import Kind, is_standard, kind_of
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.calibrate import Calibration
from mpdeploy.plan.cheapest import cheapest
from mpdeploy.plan.evidence import Evidence, gather
from mpdeploy.plan.groups import ONNX_TYPE, Group, Groups, build, is_float
from mpdeploy.plan.masks import Masks, find_masks
from mpdeploy.plan.pins import (
    KEEP_NOTHING,
    NOTHING_SEARCHED,
    Keep,
    Searched,
    Suspicion,
    find_pins,
    kept_by_user,
    overrule,
    unsettled,
)
from mpdeploy.plan.policy import Policy
from mpdeploy.plan.reasons import LOW_CODES, Code, Reason
from mpdeploy.plan.record import DataSource, Decision, PrecisionPlan, WeightLoss
from mpdeploy.plan.sizes import Sizes
from mpdeploy.plan.target import Target


@dataclass(frozen=True)
class Planned:
    """A plan, and the model that it is for, with its values' sizes: the source, at the opset that the format needs."""

    plan: PrecisionPlan
    model: ir.Model
    groups: Groups
    low: tuple[bool, ...]
    sizes: Sizes


def needed_opset(model: ir.Model, low: Format, *, low_io: bool = False) -> int:
    """Return the lowest opset, not below the model's, at which the operators that become low take the format.

    An operator that never takes it (Einsum in BF16) asks for nothing.
    """
    wanted = opset_of(model, "")
    for op_type in _becoming_low(model, low_io=low_io):
        wanted = next((v for v in range(wanted, NEWEST_OPSET + 1) if _takes(op_type, v, low)), wanted)
    return wanted


def _becoming_low(model: ir.Model, *, low_io: bool) -> set[str]:
    """Return the standard operators that are to take the low format."""
    found = {"Cast"} if low_io else set()
    for node in all_nodes(model):
        # A quantised operand's scale decides the type that a matrix product reads.
        if not (kind_of(node) is Kind.HEAVY or (is_standard(node) and node.op_type == "DequantizeLinear")):
            continue
        if any(is_float(v) for v in (*node.inputs, *node.outputs)):
            found.add(node.op_type if is_standard(node) else "Cast")  # the Cast before it
    return found


def _takes(op_type: str, version: int, low: Format) -> bool:
    rules_at = signature("", op_type, version)
    slot = rules_at.output(0) if rules_at else None
    return rules_at is not None and slot is not None and ONNX_TYPE[low] in rules_at.allowed[slot.type]


def make_plan(
    model: ir.Model,
    low: Format,
    policy: Policy,
    calibration: Calibration,
    keep: Keep,
    *,
    low_io: bool = False,
    target: Target = Target.ANY,
    suspects: Mapping[str, Suspicion] = MappingProxyType({}),
    searched: Searched = NOTHING_SEARCHED,
) -> Planned:
    """Decide the format of every float value.

    ``suspects`` names nodes that a trial found to spoil the result: they stay FP32, and so does the arithmetic
    before them.  ``searched`` is what a search decided otherwise.  Raises ``UsageError`` if a pattern of ``keep``
    matches nothing.
    """
    source_digest = digest(model)
    notes: list[str] = []
    try:
        model = raised(model, needed_opset(model, low, low_io=low_io))
    except ModelError as error:
        if low_io and not _takes("Cast", opset_of(model, ""), low):
            raise
        notes.append(error.what)
    groups = build(model, low)
    evidence = gather(model, groups, low, policy, calibration, target)
    masks = find_masks(evidence) if policy.hazards else Masks()
    pins = find_pins(evidence, keep, masks, suspects)
    freed = overrule(pins, groups, searched)
    notes += unsettled(pins, groups, calibration)
    sizes = Sizes(model, calibration.sizes)
    chosen = cheapest(groups, pins, sizes, low_io=low_io)
    decisions = []
    for group, is_low in zip(groups.all, chosen, strict=True):
        decision = _decision(group, is_low, pins | freed if is_low else pins, low)
        if is_low and id(group) in masks.saturated:
            reason = Reason(Code.MASK, "a row masked everywhere stays uniform")
            decision = replace(decision, code=reason.code.value, reason=str(reason), saturate=True)
        decisions.append(decision)
    plan = PrecisionPlan(
        precision=low,
        policy=policy.name.value,
        model=source_digest,
        opset=opset_of(model, ""),
        decisions=tuple(decisions),
        weights=ledger(evidence, chosen),
        data=DataSource(calibration.data, calibration.samples) if calibration.data else None,
        low_io=low_io,
        target=target.value,
        keep=(*keep.nodes, *keep.operators),
        notes=tuple(notes),
    )
    return Planned(plan, model, groups, tuple(chosen), sizes)


def apply_plan(model: ir.Model, plan: PrecisionPlan, keep: Keep = KEEP_NOTHING) -> Planned:
    """Return a plan, perhaps edited by a person, bound to the model that it was made for.

    What ``keep`` names becomes FP32.  A decision that a person changed says so; what was measured of the plan that a
    run made is not told of this one.  Raises ``UsageError`` if the plan belongs to another model or does not cover it,
    ``ModelError`` if it asks for a format that an operator does not take.
    """
    if plan.model != digest(model):
        raise UsageError("the plan was made for another model", remedy="plan this model anew with `mpdeploy convert`")
    made = bind(model, replace(plan, trial=None, decisions=tuple(map(_as_set, plan.decisions))))
    kept = {made.groups.all.index(group): reason for group, reason in kept_by_user(made.groups, keep)}
    by_key = {(g.name, tuple(str(v.name) for v in g.produces)): kept.get(i) for i, g in enumerate(made.groups.all)}
    decisions = tuple(_kept(d, by_key.get((d.node, d.values))) for d in made.plan.decisions)
    low = tuple(is_low and i not in kept for i, is_low in enumerate(made.low))
    named = dict.fromkeys((*plan.keep, *keep.nodes, *keep.operators))
    return replace(made, plan=replace(made.plan, decisions=decisions, keep=tuple(named)), low=low)


def _as_set(decision: Decision) -> Decision:
    """A decision whose format is not what its reason led to was set by hand."""
    known = next((code for code in Code if code.value == decision.code), None)
    if known is Code.PLAN or (known is not None and (known in LOW_CODES) == (decision.format is not Format.FP32)):
        return decision
    return replace(decision, code=Code.PLAN.value, reason=str(Reason(Code.PLAN, "")), limit="")


def _kept(decision: Decision, reason: Reason | None) -> Decision:
    if reason is None:
        return decision
    return replace(decision, format=Format.FP32, code=reason.code.value, reason=str(reason), saturate=False, limit="")


def bind(model: ir.Model, plan: PrecisionPlan) -> Planned:
    """Return a plan bound to a model that it is known to fit; faults as in ``apply_plan``."""
    model = raised(model, plan.opset)
    groups = build(model, plan.precision)
    by_key = {(d.node, d.values): d for d in plan.decisions}
    decisions = []
    for group in groups.all:
        decision = by_key.get((group.name, tuple(str(v.name) for v in group.produces)))
        if decision is None:
            raise UsageError(f"the plan does not say which format '{group.name}' has", remedy="plan the model anew")
        if decision.format not in (Format.FP32, plan.precision):
            raise UsageError(f"'{group.name}' cannot be {decision.format.value} in a {plan.precision.value} plan")
        if decision.format is not Format.FP32 and group.refusal:
            raise ModelError(f"the plan asks for {decision.format.value}: {group.refusal}", where=group.name)
        decisions.append(decision)
    # What an earlier version decided besides, of numbers that nobody computes with, is left out.
    low = tuple(decision.format is not Format.FP32 for decision in decisions)
    return Planned(replace(plan, decisions=tuple(decisions)), model, groups, low, Sizes(model))


def digest(model: ir.Model) -> str:
    """Return the SHA-256 of the graph, its weights left out: 64 hexadecimal digits."""
    skeleton, _ = io.serialised(model)
    return hashlib.sha256(skeleton).hexdigest()


def _decision(group: Group, is_low: bool, pins: dict[int, Reason], low: Format) -> Decision:
    if id(group) in pins:
        reason = pins[id(group)]
    elif not is_low:
        reason = Reason(Code.CHEAPEST, "between FP32 neighbours")
    elif kind_of(group.node) is Kind.HEAVY:
        reason = Reason(Code.HEAVY, "")
    else:
        reason = Reason(Code.HARMLESS, "")
    return Decision(
        node=group.name,
        op=group.node.op_type,
        values=tuple(str(v.name) for v in group.produces),
        format=low if is_low else Format.FP32,
        code=reason.code.value,
        reason=str(reason),
        limit=reason.limit,
    )


def ledger(evidence: Evidence, chosen: list[bool]) -> tuple[WeightLoss, ...]:
    """Return the stored tensors that low operators read and that have overflowed or tiny elements, worst first."""
    low_groups = {id(g) for g, is_low in zip(evidence.groups.all, chosen, strict=True) if is_low}
    losses = []
    for value, facts in evidence.constants.items():
        readers = [g for g in evidence.groups.consumers[value] if id(g) in low_groups]
        if readers and facts.loss.is_exceptional:
            names = tuple(dict.fromkeys(str(g.node.name) for g in readers))
            losses.append(WeightLoss(str(value.name), names, facts.loss))
    return tuple(sorted(losses, key=lambda w: (-w.loss.overflowed, -w.loss.norm_error, w.name)))
