"""Products that rules keep in FP32 because something small behind them decides go low where the data say it is no harm.

What is small in one element of a million is small by the rules.  Only a run tells whether a logarithm or a quotient
behind a product feels how it was rounded.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from mpdeploy.conversion.trial import Judge, Judged
from mpdeploy.errors import ModelError
from mpdeploy.graph.traits import Kind, kind_of
from mpdeploy.plan.planner import Planned
from mpdeploy.plan.reasons import Code

Freed = Mapping[str, str]
"""Decisions by node that may be low after all, and why."""

NOTHING_FREED: Freed = MappingProxyType({})

_SMALL = frozenset({Code.RECIPROCAL.value, Code.EPSILON.value})
_ROOM = 0.5  # of the budget that may be used: what the rules saw on these data may be worse on others


def kept_for_small(planned: Planned) -> Freed:
    """Return the products that a plan keeps in FP32 for what is small behind them."""
    return {
        decision.node: "on the data its rounding is not felt behind it"
        for group, decision in zip(planned.groups.all, planned.plan.decisions, strict=True)
        if kind_of(group.node) is Kind.HEAVY and decision.code in _SMALL
    }


def freed(judge: Judge, replan: Callable[[Freed], Planned], before: Planned) -> tuple[Planned, Judged] | None:
    """Return the plan with such products low, of which there are some, and what it came to; None if they do harm."""
    try:
        planned = replan(kept_for_small(before))
        judged = judge.of(planned)
    except ModelError:  # formats that cannot stand side by side
        return None
    return (planned, judged) if judged.badness <= 1 and judged.used <= _ROOM else None
