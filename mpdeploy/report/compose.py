"""From a comparison to everything that its report shows."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from mpdeploy.numerics.rounding import Loss
from mpdeploy.numerics.samples import SampleError
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.report.environment import environment
from mpdeploy.report.images import image_in, png_uri
from mpdeploy.report.record import PlanRow, PlanTable, Report, SamplePicture, WeightRow, WeightTable, report_of
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.verification.record import DriftReport

PICTURES = 6


def composed(drift: DriftReport, plan: PrecisionPlan | None, feeds: Feeds, commands: tuple[str, ...] = ()) -> Report:
    """Return the full report on a comparison: with the plan's reasons, its weight ledger, images of worst samples.

    ``feeds`` are read once more if some sample has an error.
    """
    name = drift.candidate.path
    return replace(
        report_of(drift, commands),
        plans=(plan_table(plan, name),) if plan is not None else (),
        weights=(weight_table(plan, name),) if plan is not None and plan.weights else (),
        pictures=tuple(_pictures(drift, feeds)),
        environment=environment(),
    )


def plan_table(plan: PrecisionPlan, candidate: str) -> PlanTable:
    """Return the nodes that a plan keeps in FP32."""
    rows = tuple(
        PlanRow(d.node, d.op, d.format.value, d.code, d.reason.removeprefix(f"{d.code} "))
        for d in plan.decisions
        if d.format is not plan.precision
    )
    return PlanTable(candidate, rows)


def weight_table(plan: PrecisionPlan, candidate: str) -> WeightTable:
    """Return the stored tensors that lost more than ordinary rounding, the worst first."""
    ordered = sorted(plan.weights, key=lambda w: (-w.loss.overflowed, -w.loss.norm_error))
    return WeightTable(
        candidate, tuple(WeightRow(w.name, ", ".join(w.consumers), _lost(w.loss), w.loss.norm_error) for w in ordered)
    )


def _lost(loss: Loss) -> str:
    parts = [
        (loss.overflowed, "became infinite"),
        (loss.vanished, "became 0"),
        (loss.subnormal, "kept fewer bits"),
    ]
    said = ", ".join(f"{count} {what}" for count, what in parts if count)
    return f"of {loss.size}: {said}" if said else f"of {loss.size}: rounded only"


def _pictures(drift: DriftReport, feeds: Feeds) -> Iterator[SamplePicture]:
    worst = _worst(drift)
    if not worst:
        return
    found = 0
    for where, feed in feeds.labelled():
        for output, sample in worst:
            if sample.feed != where or found >= PICTURES:
                continue
            image = image_in(feed, sample.row)
            if image is not None:
                found += 1
                height, width, _ = image.shape
                yield SamplePicture(sample.sample, output, sample.error, png_uri(image), width, height)
        if found >= PICTURES:
            return


def _worst(drift: DriftReport) -> list[tuple[str, SampleError]]:
    """The worst samples of all outputs, each once, the worst first; one that is not finite is the worst."""
    found: dict[str, tuple[str, SampleError]] = {}
    for output in drift.outputs:
        for sample in output.worst_samples:
            if sample.error != 0:
                found.setdefault(sample.sample, (output.name, sample))
    ordered = sorted(found.values(), key=lambda item: -(np.inf if item[1].error is None else item[1].error))
    return ordered[:PICTURES]
