"""Questions about a plan: why is this node FP32, what stands in the way of low precision, how do two plans differ."""

import fnmatch
from collections import Counter
from dataclasses import dataclass

from mpdeploy.numerics.formats import Format
from mpdeploy.plan.record import Decision, PrecisionPlan


@dataclass(frozen=True)
class Difference:
    """A node that two plans treat differently; a side is None where its plan does not know the node."""

    node: str
    first: Decision | None
    second: Decision | None


@dataclass(frozen=True)
class ReasonCount:
    """How many decisions of one format rest on one code, and an example of its text."""

    format: Format
    code: str
    count: int
    example: str


def decisions_about(plan: PrecisionPlan, pattern: str) -> tuple[Decision, ...]:
    """Return the decisions whose node or value matches the name or shell pattern."""

    def matches(name: str) -> bool:
        return name == pattern or fnmatch.fnmatchcase(name, pattern)

    return tuple(
        d for d in plan.decisions if matches(d.node) or matches(d.node.split(":")[0]) or any(map(matches, d.values))
    )


def reasons(plan: PrecisionPlan) -> tuple[ReasonCount, ...]:
    """Return how often each reason decided, FP32 first, then by number."""
    counts = Counter((d.format, d.code) for d in plan.decisions)
    examples = {(d.format, d.code): f"{d.node}: {d.reason}" for d in reversed(plan.decisions)}
    rows = [ReasonCount(kind, code, n, examples[kind, code]) for (kind, code), n in counts.items()]
    return tuple(sorted(rows, key=lambda r: (r.format is not Format.FP32, -r.count, r.code)))


def differences(first: PrecisionPlan, second: PrecisionPlan) -> tuple[Difference, ...]:
    """Return the nodes to which the plans give different formats, or that only one of them knows."""
    one = {(d.node, d.values): d for d in first.decisions}
    two = {(d.node, d.values): d for d in second.decisions}
    found = []
    for key in dict.fromkeys([*one, *two]):
        a, b = one.get(key), two.get(key)
        if a is None or b is None or a.format is not b.format:
            found.append(Difference(key[0], a, b))
    return tuple(found)
