"""``verify``: does the candidate compute what its reference computes?"""

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import mpdeploy
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.feeds import Feeds, open_feeds
from mpdeploy.runtime.runner import Runner
from mpdeploy.verification.budget import Budget, default_budget, parse_budget
from mpdeploy.verification.compare import Comparison, compare
from mpdeploy.verification.inside import blame_on, repair_of
from mpdeploy.verification.noise import Noise, measure_noise
from mpdeploy.verification.record import DataFacts, DriftReport
from mpdeploy.verification.subject import Subject, opened
from mpdeploy.verification.verdict import judge


@dataclass(frozen=True)
class Depth:
    """How much to look into beside the outputs.

    ``noise``: measure the reference's own noise first.  ``layers``: measure the drift of every value along the
    graph, and, if the verdict is against the candidate, look for a list of nodes to keep in FP32 that repairs it.
    """

    noise: bool = True
    layers: bool = False


def verify(
    reference: str | Path,
    candidate: str | Path,
    data: str | Feeds,
    budget: str | Budget | None = None,
    *,
    depth: Depth = Depth(),
    witnesses: Mapping[str, Runner] | None = None,
) -> DriftReport:
    """Return how far the ONNX model ``candidate`` drifts from ``reference`` on the data, and the verdict.

    A model with FP16 or BF16 tensors runs under true rounding (see ``mpdeploy.runtime.emulator``).  ``data`` and
    ``budget`` may be written as their flags are; without a budget the default for the candidate's format counts.
    ``witnesses`` are other runs of the reference, by a word for each, say of the torch model it came from: what they
    differ in counts as its noise.  Raises ``UsageError`` for bad files or data, ``ModelError`` for models that
    cannot run.
    """
    started, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    feeds = open_feeds(data) if isinstance(data, str) else data
    wanted = parse_budget(budget) if isinstance(budget, str) else budget
    ours, theirs = opened(Path(reference)), opened(Path(candidate))
    noise = _noise(ours, feeds, witnesses or {}) if depth.noise else ()
    measured = compare(ours.runner, theirs.runner, feeds, theirs.coarsest)
    allowed = wanted or default_budget(theirs.coarsest, measured.outputs)
    verdict = judge(measured.outputs, measured.missing, allowed, theirs.runner.describe(), noise)
    blame = None
    if depth.layers:
        blame = blame_on(ours, theirs, feeds)
        if not verdict.passed:
            blame = repair_of(blame, ours, theirs, feeds, allowed)
    return DriftReport(
        reference=ours.facts,
        candidate=theirs.facts,
        data=DataFacts(feeds.name, measured.feeds, measured.samples, feeds.sha256()),
        reference_run=ours.runner.describe(),
        candidate_run=theirs.runner.describe(),
        outputs=measured.outputs,
        budget=allowed,
        verdict=verdict,
        notes=(*measured.notes, *_remarks(ours, measured)),
        created=created,
        seconds=round(time.monotonic() - started, 3),
        tool=f"mpdeploy {mpdeploy.__version__}",
        noise=noise,
        blame=blame,
    )


def _noise(ours: Subject, feeds: Feeds, witnesses: Mapping[str, Runner]) -> tuple[Noise, ...]:
    again = [("run again", ours.runner)]
    return measure_noise(ours.runner, itertools.chain(again, ours.other_ways(), witnesses.items()), feeds)


def _remarks(ours: Subject, measured: Comparison) -> list[str]:
    remarks = []
    if ours.coarsest is not Format.FP32:
        remarks.append(f"the reference itself holds {ours.coarsest.value} tensors: it is no FP32 baseline")
    if any(output.frozen for output in measured.outputs):
        remarks.append("an output is the same for every sample: does the data reach it?")
    return remarks
