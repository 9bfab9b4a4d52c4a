"""Masked softmax in low precision: exact where the mask is a sentinel far below every score.

A mask adds (or selects) a huge negative number, -1e9 or the smallest float32, which no half format holds.  In FP32
the sentinel absorbs the score it is added to, so that a row masked everywhere comes out uniform.  In low precision
the sentinel becomes -inf, which masks as well, and `Max(scores, lowest)` before the softmax brings the fully masked
row back to equal numbers.  That is the same result, provided that

- the sentinel has one level (a sum of masks has several, and FP32 tells them apart), and
- it absorbs: every score is smaller than half its last digit in FP32;

or that the data shows no row that is masked everywhere.
"""

import math
from dataclasses import dataclass, field

import onnx_ir as ir

from mpdeploy.graph.traits import Kind, is_standard, kind_of
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.constants import small_array
from mpdeploy.plan.evidence import Evidence
from mpdeploy.plan.groups import Group, is_constant

_SHAPING = frozenset({"Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Slice", "Cast", "Gather"})
_DEPTH = 8


@dataclass
class Masks:
    """Where a value beyond the format's range does no harm.

    ``excused`` holds pairs of a value and the ``id`` of a group that touches it; ``saturated`` the ``id`` of each
    softmax group whose input is to be saturated at the format's lowest number.
    """

    excused: set[tuple[ir.Value, int]] = field(default_factory=set)
    saturated: set[int] = field(default_factory=set)


def find_masks(evidence: Evidence) -> Masks:
    """Return the masked softmaxes that low precision computes as FP32 does."""
    masks = Masks()
    for group in evidence.groups.all:
        if kind_of(group.node) is not Kind.SOFTMAX or not is_standard(group.node) or group.refusal:
            continue
        if group.node.op_type not in evidence.policy.fp32_operators:
            _excuse(evidence, group, masks)
    return masks


def _excuse(evidence: Evidence, softmax: Group, masks: Masks) -> None:
    scores = softmax.consumes[0].value
    if not _is_beyond(evidence, scores):
        return
    excused = {(scores, id(softmax))}
    value: ir.Value | None = scores
    for _ in range(_DEPTH):
        group = evidence.groups.producer.get(value) if value is not None else None
        if value is None or group is None or group.refusal:
            return
        excused.add((value, id(group)))
        if group.node.op_type in ("Add", "Where"):
            mask, rest = _sides(evidence, group)
            if mask is None or not _is_exact(evidence, softmax, group.node, mask, rest):
                return
            excused.add((mask, id(group)))
            if rest is None or not _is_beyond(evidence, rest):
                masks.excused |= excused
                masks.saturated.add(id(softmax))
                return
            value = rest  # one mask after another
            excused.add((value, id(group)))
        elif group.node.op_type in _SHAPING:
            value = group.consumes[0].value
            excused.add((value, id(group)))
        else:
            return


def _is_beyond(evidence: Evidence, value: ir.Value) -> bool:
    return evidence.bounds_of(value).low < -evidence.low.max


def _sides(evidence: Evidence, group: Group) -> tuple[ir.Value | None, ir.Value | None]:
    """Return the operand that holds the sentinel, and the other one."""
    a, b = group.node.inputs[-2], group.node.inputs[-1]
    if a is None or b is None:
        return None, None
    levels = [_sentinel(evidence, v, _DEPTH) for v in (a, b)]
    if levels[0] is not None:
        return a, b
    if levels[1] is not None:
        return b, a
    # Nothing proves the levels; the data may show that they do not matter.
    beyond = [v for v in (a, b) if _is_beyond(evidence, v)]
    return (beyond[0], b if beyond[0] is a else a) if len(beyond) == 1 else (None, None)


def _is_exact(evidence: Evidence, softmax: Group, node: ir.Node, mask: ir.Value, rest: ir.Value | None) -> bool:
    inner = evidence.inner_of(softmax.node)
    if inner is not None and inner.row_maximum > -evidence.low.max / evidence.policy.margin:
        return True  # no row is masked everywhere
    sentinel = _sentinel(evidence, mask, _DEPTH)
    if sentinel is None or (rest is not None and _is_beyond(evidence, rest)):
        return False
    if node.op_type == "Where":
        return True
    digit = 2.0 ** (math.floor(math.log2(-sentinel)) - Format.FP32.facts.precision + 1)
    return evidence.bounds_of(rest).magnitude < digit / 2


def _sentinel(evidence: Evidence, value: ir.Value | None, depth: int) -> float | None:
    """Return the one number beyond the range that a value may hold beside ordinary ones; None if it is not one."""
    if value is None or depth == 0:
        return None
    limit = -evidence.low.max
    stats = evidence.stats_of(value)
    if stats is not None and stats.low < limit and stats.high <= 0 and stats.smallest == stats.absmax:
        return stats.low  # nothing but zeros and one level was ever seen
    if is_constant(value):
        array = small_array(value, 1 << 20)
        levels = {float(x) for x in array[array < limit]} if array is not None and array.dtype.kind == "f" else set()
        return levels.pop() if len(levels) == 1 else None
    node = value.producer()
    if node is None:
        return None
    if node.op_type == "Where":
        found = [
            _sentinel(evidence, v, depth - 1) for v in node.inputs[1:] if v is not None and _is_beyond(evidence, v)
        ]
        return found[0] if len(found) == 1 else None
    if node.op_type in _SHAPING:
        return _sentinel(evidence, node.inputs[0], depth - 1)
    if node.op_type == "Mul":
        return _switched(evidence, node)
    return None


def _switched(evidence: Evidence, node: ir.Node) -> float | None:
    """A 0/1 switch times a sentinel."""
    for switch, factor in ((node.inputs[0], node.inputs[1]), (node.inputs[1], node.inputs[0])):
        if switch is None or factor is None:
            continue
        bounds, array = evidence.bounds_of(switch), small_array(factor, 1)
        if array is not None and array.size == 1 and bounds.integral and bounds.low >= 0 and bounds.high <= 1:
            return float(array.reshape(())[()])
    return None
