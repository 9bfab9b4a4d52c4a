"""A list of nodes to keep in FP32, without those that it does not need.

What is needed is asked of the candidate's own formats: a conversion with better defaults may need no list at all, and
then every list would look too long.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from mpdeploy.numerics.formats import LOW_FORMATS, Format
from mpdeploy.plan.record import Decision, PrecisionPlan
from mpdeploy.verification.layers import Layer

TRIALS = 12  # so many conversions are tried for it at most


def shortened(nodes: tuple[str, ...], works: Callable[[Sequence[str]], bool]) -> tuple[tuple[str, ...], int]:
    """Return the nodes without those that ``works`` does without, and how often it was asked: ``TRIALS`` times at most.

    First halves are left out, then quarters, at last single nodes; one node always stays.  Where not even all nodes
    work, all come back.
    """
    if not works(nodes):
        return nodes, 1
    runs, size = 1, len(nodes) // 2
    while size:
        start = 0
        while start < len(nodes) and runs < TRIALS:
            fewer = nodes[:start] + nodes[start + size :]
            if not fewer:
                break
            runs += 1
            if works(fewer):
                nodes = fewer
            else:
                start += size
        size //= 2
    return nodes, runs


def as_candidate(plan: PrecisionPlan, layers: Sequence[Layer]) -> PrecisionPlan:
    """Return the plan with what the candidate computes in a low format low, as far as its layers tell."""
    low = {f.value for f in LOW_FORMATS}
    formats = {layer.node: layer.format for layer in layers if layer.node and not layer.narrowed}
    seen = [formats.get(d.node, formats.get(_node(d))) for d in plan.decisions]
    decisions = [
        _formed(d, plan.precision if found in low else d.format) for d, found in zip(plan.decisions, seen, strict=True)
    ]
    return replace(plan, decisions=tuple(decisions))


def with_kept(plan: PrecisionPlan, nodes: Collection[str]) -> PrecisionPlan:
    """Return the plan with these nodes in FP32."""
    kept = set(nodes)
    decisions = [_formed(d, Format.FP32) if kept & {d.node, _node(d)} else d for d in plan.decisions]
    return replace(plan, decisions=tuple(decisions))


def _node(decision: Decision) -> str:
    """The node: a decision on one operand or state of it has that behind a colon."""
    return decision.node.rpartition(":")[0] or decision.node


def _formed(decision: Decision, wanted: Format) -> Decision:
    return replace(decision, format=wanted)
