"""A plan that was made from data is tried on it: what drifts too far under true rounding goes back to FP32.

Rules see ranges, not every way in which rounding can matter (a difference of large numbers, an angle, a threshold).
So the planned model runs once on a few feeds; where an output drifts beyond what rounding explains, the operator that
first multiplied the error, and the arithmetic before it, become FP32 and the plan is made again.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mpdeploy.conversion.apply import apply
from mpdeploy.errors import ModelError
from mpdeploy.graph.scope import all_nodes
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.planner import Planned, Suspicion, bind
from mpdeploy.runtime.choose import truthful_runner
from mpdeploy.runtime.fit import fit
from mpdeploy.runtime.observe import Observer
from mpdeploy.runtime.runner import Feed
from mpdeploy.runtime.twin import runnable

Suspects = Mapping[str, Suspicion]
"""Nodes by name that must become FP32."""

_FEEDS = 2
_ROUNDS = 6
_TOLERANCE = {Format.FP16: 0.01, Format.BF16: 0.04}  # of an output's largest magnitude
_AMPLIFIED = 8.0  # times its inputs' error: more than a sum of roundings


def settled(
    model: ir.Model, first: Planned, replan: Callable[[Suspects], Planned], feeds: Iterable[Feed], where: str
) -> Planned:
    """Return ``first``, or the plan that ``replan`` makes of it when its drift on the feeds can be at least halved.

    What the trial measured is added to the plan's notes.  ``model`` is the source, which stays as it is; ``where``
    names it in errors.  Raises ``ModelError`` if every plan tried gives NaN or infinity where the source does not.
    """
    tolerance = _TOLERANCE[first.plan.precision]
    samples = list(itertools.islice(feeds, _FEEDS))
    expected = _outputs(model, samples, where)
    suspects: dict[str, Suspicion] = {}
    best = current = first
    least = started = _drift(_tried(model, first), samples, expected, where)
    for _ in range(_ROUNDS):
        if least <= tolerance:
            break
        found = _suspect(model, _tried(model, current), samples[0], tolerance, where)
        if found is None or (found[0] in suspects and suspects[found[0]].deep):
            break
        # Where the arithmetic before it was not enough, the product that feeds it is next.
        suspects[found[0]] = Suspicion(found[1], deep=found[0] in suspects)
        current = replan(suspects)
        drift = _drift(_tried(model, current), samples, expected, where)
        if drift < least:
            best, least = current, drift
    if math.isinf(least):
        raise ModelError(
            f"in {first.plan.precision.value} the model's outputs become NaN or infinite on the data",
            where=where,
            remedy="use --precision bf16, --policy safe, or --keep-fp32 for the part that overflows",
        )
    if least > started / 2:
        best, least = first, started
    note = f"tried on {len(samples)} feeds: no output drifts by more than {least:.2g} of its largest value"
    return replace(best, plan=replace(best.plan, notes=(*best.plan.notes, note)))


def copy_of(model: ir.Model) -> ir.Model:
    """Return a copy whose graph may be changed; large tensors are shared."""
    copy = model.clone()
    copy.meta.update(model.meta)
    return copy


def _tried(model: ir.Model, planned: Planned) -> ir.Model:
    return apply(bind(copy_of(model), planned.plan))


def _outputs(model: ir.Model, feeds: list[Feed], where: str) -> list[dict[str, NDArray[Any]]]:
    """Run the model on each feed; its weights are in memory only meanwhile, and only once."""
    runner = truthful_runner(model, where, lean=True)
    return [runner.run(fit(feed, runner.inputs, where).feed) for feed in feeds]


def _drift(model: ir.Model, feeds: list[Feed], expected: list[dict[str, NDArray[Any]]], where: str) -> float:
    worst = 0.0
    for reference, got in zip(expected, _outputs(model, feeds, where), strict=True):
        worst = max([worst, *(distance(reference[name], got[name]) for name in reference if name in got)])
    return worst


def distance(reference: NDArray[Any], candidate: NDArray[Any]) -> float:
    """Return max|r - c| over max|r|; infinite if the candidate breaks where the reference is finite.

    Integers are right or wrong: 0 or 1.  So are shapes that depend on the data.
    """
    if reference.shape != candidate.shape:
        return 1.0
    if reference.dtype.kind != "f":
        return 0.0 if np.array_equal(reference, candidate) else 1.0
    r, c = reference.astype(np.float64), candidate.astype(np.float64)
    finite = np.isfinite(r)
    if not np.isfinite(c[finite]).all():
        return float("inf")
    size = np.abs(r[finite]).max(initial=0.0)
    error = np.abs(np.subtract(r, c, where=finite, out=np.zeros_like(r))).max(initial=0.0)
    return float(error / size) if size > 0 else float(error > 0)


def _suspect(source: ir.Model, converted: ir.Model, feed: Feed, tolerance: float, where: str) -> tuple[str, str] | None:
    """Return the node that multiplied the error most, and the evidence; None if no single one did."""
    errors = dict(_inner_distances(source, converted, feed, where))
    worst: tuple[float, str, str] | None = None
    for node in all_nodes(source):
        made = max((errors.get(str(v.name), 0.0) for v in node.outputs), default=0.0)
        if made <= tolerance / 2:
            continue
        given = max((errors.get(str(v.name), 0.0) for v in node.inputs if v is not None), default=0.0)
        factor = made / max(given, tolerance / 50)
        if factor > _AMPLIFIED and (worst is None or factor > worst[0]):
            worst = (
                factor,
                str(node.name),
                f"its drift is {made:.2g} of the largest value, that of its inputs {given:.2g}",
            )
    return None if worst is None else (worst[1], worst[2])


def _inner_distances(source: ir.Model, converted: ir.Model, feed: Feed, where: str) -> Iterator[tuple[str, float]]:
    names = [str(v.name) for node in source.graph for v in node.outputs if v.name]
    ours, theirs = (Observer(runnable(m), names, where).run(feed) for m in (source, converted))
    waiting: dict[str, NDArray[Any]] = {}
    for name, array in ours:
        waiting[name] = array
    for name, array in theirs:
        if name in waiting:
            yield name, distance(waiting.pop(name), array)
