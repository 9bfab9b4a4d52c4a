"""What drifts too far on the data goes back to FP32, until the plan is within budget or nothing helps.

Rules see ranges, not every way in which rounding can matter (a difference of large numbers, an angle, a threshold, a
logarithm that a norm stretches).  So the plan is tried; where its outputs drift beyond what rounding explains, the
operator that first multiplied the error, and the arithmetic before it, become FP32 and the plan is made again.  Where
that is not enough and the default budget is broken, ever more of the operators that add error follow; and, as another
start, all arithmetic that low precision is not for.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import onnx_ir as ir

from mpdeploy.conversion.culprits import Drift, amplifier, by_guilt, drifts
from mpdeploy.conversion.freeing import NOTHING_FREED, Freed, freed, kept_for_small
from mpdeploy.conversion.trial import Judge, Judged, carried_out
from mpdeploy.errors import ModelError
from mpdeploy.graph.arithmetic import flops
from mpdeploy.graph.traits import Kind, kind_of
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.pins import Suspicion
from mpdeploy.plan.planner import Planned
from mpdeploy.runtime.feeds import Feeds

Suspects = Mapping[str, Suspicion]
"""Nodes by name that must become FP32."""

_AMPLIFIERS = 6  # rounds that look for one operator each
_GROWTH = 4  # so many times as many operators go back in each further round
_SHORTER = 6  # tries to do with fewer
_CONFIRMED = 3  # times that a repair is held to all feeds
_MARGIN = 0.9  # of the budget on the worst feeds, so that it holds on the others
_WORTH = 0.1  # of the first plan's low FLOPs: what is left of them must make the conversion worth it
_TOLERANCE = {Format.FP16: 0.01, Format.BF16: 0.04}


def settled(
    model: ir.Model, first: Planned, replan: Callable[[Suspects, Freed], Planned], feeds: Feeds, where: str
) -> Planned:
    """Return ``first``, or the plan that ``replan`` makes of it that drifts less; what was measured is its ``trial``.

    ``model`` is the source, which stays as it is; ``where`` names it in errors.  Raises ``ModelError`` if every plan
    tried gives NaN or infinity where the source does not.
    """
    if not (first.plan.low_count or kept_for_small(first)):
        return first
    low = first.plan.precision
    judge = Judge(model, low, feeds, where)
    start = Attempt({}, first, judge.of(first))
    best, tries, cause = start, 1, Cause.NONE
    if start.judged.badness > 1:
        cause = _cause(judge, start)
        if cause is Cause.NONE:
            repair = _Repair(judge, lambda suspects: replan(suspects, NOTHING_FREED), start)
            best, tries = repair.run(), repair.tries
    elif kept_for_small(first):
        found = freed(judge, lambda names: replan({}, names), first)
        best, tries = start if found is None else Attempt({}, *found), 2
    if best.judged.broken:
        raise _broken(best.judged, where)
    trial = replace(best.judged.record(judge.given), plans=tries, cause=cause.value)
    return replace(best.planned, plan=replace(best.planned.plan, trial=trial))


def tried(model: ir.Model, planned: Planned, feeds: Feeds, where: str) -> Planned:
    """Return a plan that is given, with what came of it on the feeds as its ``trial``; nothing is repaired.

    Raises ``ModelError`` as ``settled`` does.
    """
    if not planned.plan.low_count:
        return planned
    judge = Judge(model, planned.plan.precision, feeds, where)
    judged = judge.of(planned)
    if judged.broken:
        raise _broken(judged, where)
    return replace(planned, plan=replace(planned.plan, trial=judged.record(judge.given)))


def _broken(judged: Judged, where: str) -> ModelError:
    return ModelError(
        f"in {judged.low.value} the model's outputs become NaN or infinite on the data: {judged.text}",
        where=where,
        remedy="use --precision bf16, --policy safe, or --keep-fp32 for the part that overflows",
    )


@dataclass(frozen=True)
class Attempt:
    """A plan that was tried: what was suspected for it, and what it came to."""

    suspects: Suspects
    planned: Planned
    judged: Judged


class Cause(Enum):
    """What no choice of formats mends, in words."""

    NONE = ""
    RANDOM = "the model does not give the same numbers twice"
    SENSITIVE = "the model itself is that sensitive: with nothing rounded but its weights it drifts as much"


def _cause(judge: Judge, start: Attempt) -> Cause:
    """Tell why going back to FP32 would help nothing, if so: two runs save many."""
    if not judge.repeats(_names(start)):
        return Cause.RANDOM
    if start.judged.broken:
        return Cause.NONE
    alone = judge.of_weights(start.planned, _names(start))
    as_far = max(alone.allowance, alone.peak) > max(start.judged.allowance, start.judged.peak) / 2
    return Cause.SENSITIVE if alone.badness > 1 and as_far else Cause.NONE


def _names(attempt: Attempt) -> tuple[str, ...]:
    name = attempt.judged.worst[0]
    return (name,) if name else ()


@dataclass
class _Repair:
    """A search for what to keep in FP32; plans are tried on the worst feeds, and the best on all of them."""

    judge: Judge
    replan: Callable[[Suspects], Planned]
    start: Attempt
    few: list[str] = field(default_factory=list)
    tries: int = 1

    def run(self) -> Attempt:
        best = self.start
        for _ in range(_CONFIRMED):
            self.few = list(dict.fromkeys([*self.few, *_names(best)]))
            found = self._better(best)
            if found is best:
                return best
            confirmed = replace(found, judged=self.judge.of(found.planned))
            if confirmed.judged.badness >= best.judged.badness:
                return best
            best = confirmed
            if best.judged.badness <= 1:
                break
        halved = best.judged.badness <= self.start.judged.badness / 2 or math.isinf(self.start.judged.badness)
        repaired = self.start.judged.used > 1 >= best.judged.used
        return best if halved or repaired else self.start

    def _better(self, before: Attempt) -> Attempt:
        """Return the best that either way of looking finds, or ``before``."""
        base = replace(before, judged=self.judge.of(before.planned, tuple(self.few)))
        best = min([base, *self._amplifiers(base)], key=_badness)
        if before.judged.used > 1 and best.judged.used > _MARGIN:
            best = next(self._within(best), best)
        return before if best is base else best

    def _amplifiers(self, base: Attempt) -> Iterator[Attempt]:
        """One operator after the other that multiplies the error, while that helps."""
        current, idle = base, 0
        for _ in range(_AMPLIFIERS):
            if current.judged.badness <= 1 or idle == 2:
                return
            found = amplifier(self.judge.model, self._drifts(current), _TOLERANCE[self.judge.low])
            if found is None or (found[0] in current.suspects and current.suspects[found[0]].deep):
                return
            # Where the arithmetic before it was not enough, the product that feeds it is next.
            again = Suspicion(found[1], deep=found[0] in current.suspects)
            tried = self._tried({**current.suspects, found[0]: again})
            if tried is None:
                return
            idle = 0 if tried.judged.badness < 0.9 * current.judged.badness else idle + 1
            current = tried
            yield current

    def _within(self, base: Attempt) -> Iterator[Attempt]:
        """Plans within the budget that keep enough of the arithmetic low, found by growing what is kept."""
        ranked = [entry for entry in by_guilt(self.judge.model, self._drifts(base)) if entry[0] not in base.suspects]
        for beginning in (base.suspects, {**base.suspects, **self._pointwise(base)}):
            last: Suspects = base.suspects
            for count in _counts(len(ranked)):
                suspects = {**beginning, **dict(ranked[:count])}
                tried = self._tried(suspects)
                if tried is None or self._worth(tried) < _WORTH:
                    break
                if tried.judged.used <= _MARGIN:
                    yield self._shortened(tried, last)
                last = suspects

    def _pointwise(self, base: Attempt) -> Suspects:
        """All arithmetic that low precision is not for."""
        why = Suspicion("with all arithmetic low but products, outputs are over budget")
        groups = zip(base.planned.groups.all, base.planned.low, strict=True)
        return {str(g.node.name): why for g, low in groups if low and kind_of(g.node) is not Kind.HEAVY}

    def _shortened(self, found: Attempt, needed: Suspects) -> Attempt:
        """Do without a half of what the last round added, and a half of the rest, as long as the budget holds."""
        rest = [name for name in found.suspects if name not in needed]
        size = len(rest) // 2
        for _ in range(_SHORTER):
            if size < 1:
                break
            dropped = set(rest[-size:])
            tried = self._tried({n: s for n, s in found.suspects.items() if n not in dropped})
            if tried is not None and tried.judged.used <= _MARGIN:
                found, rest = tried, rest[:-size]
                size = min(size, len(rest) // 2)
            else:
                size //= 2
        return found

    def _tried(self, suspects: Suspects) -> Attempt | None:
        try:
            planned = self.replan(suspects)
            judged = self.judge.of(planned, tuple(self.few))
        except ModelError:  # formats that cannot stand side by side
            return None
        self.tries += 1
        return Attempt(suspects, planned, judged)

    def _drifts(self, attempt: Attempt) -> dict[str, Drift]:
        name, row = attempt.judged.worst
        feed = self.judge.feed(name, row)
        return drifts(self.judge.model, carried_out(self.judge.model, attempt.planned), feed, self.judge.where)

    def _worth(self, attempt: Attempt) -> float:
        """The share of the first plan's low FLOPs that is still low."""
        before = _low_flops(self.start.planned)
        return _low_flops(attempt.planned) / before if before else 1.0


def _low_flops(planned: Planned) -> int:
    return sum(flops(g.node) for g, low in zip(planned.groups.all, planned.low, strict=True) if low)


def _badness(attempt: Attempt) -> float:
    return attempt.judged.badness


def _counts(total: int) -> Iterator[int]:
    count = 1
    while count < total:
        yield count
        count *= _GROWTH
    yield total
