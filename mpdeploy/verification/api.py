"""``verify``: does the candidate compute what its reference computes?"""

import itertools
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import mpdeploy
from mpdeploy.conversion.api import plan_path_of
from mpdeploy.errors import UsageError
from mpdeploy.numerics.budget import Budget, parse_budget
from mpdeploy.numerics.default_budget import default_budget
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.compare import Comparison, compare
from mpdeploy.runtime.emulator import EmulatorRunner
from mpdeploy.runtime.feeds import Data, Feeds, as_feeds
from mpdeploy.runtime.loadable import ANY, described, refusals
from mpdeploy.runtime.runner import Runner
from mpdeploy.verification.baseline import load_baseline, worse_than
from mpdeploy.verification.inside import blame_on, repair_of
from mpdeploy.verification.noise import Noise, measure_noise
from mpdeploy.verification.record import DataFacts, DriftReport
from mpdeploy.verification.settings import Settings
from mpdeploy.verification.subject import Subject, opened
from mpdeploy.verification.tasks import NO_SCORING, Scoring
from mpdeploy.verification.verdict import judge


def verify(
    reference: str | Path | Subject,
    candidate: str | Path | Subject,
    data: Data,
    budget: str | Budget | Settings | None = None,
    *,
    layers: bool = False,
    noise: bool = True,
    scoring: Scoring = NO_SCORING,
    baseline: str | Path | None = None,
    witnesses: Mapping[str, Runner] | None = None,
    force: bool = False,
    timeout: float | None = None,
) -> DriftReport:
    """Return how far ``candidate`` drifts from ``reference`` on the data, and the verdict.

    Both are ONNX files, which run truthfully: with FP16 or BF16 tensors under true rounding (see
    ``mpdeploy.runtime.emulator``).  Or they are a ``Subject``, with a runner of its own; if the candidate's run is no
    evidence, only ``force`` lets it pass.  ``data`` and ``budget`` may be written as their flags are; without a
    budget the default for the candidate's format counts.  ``noise``: measure the reference's own noise first.
    ``layers``: measure the drift of every value along the graph, and, if the verdict is against the candidate, look
    for a list of nodes to keep in FP32 that repairs it.  ``baseline`` is an earlier ``report.json`` that the drift
    must not exceed.  ``witnesses`` are other runs of the reference, by a word for each, say of the torch model it
    came from: what they differ in counts as its noise.  One run of a file may take ``timeout`` seconds.  Raises
    ``UsageError`` for bad files or data, ``ModelError`` for models that cannot run.
    """
    started, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    feeds = as_feeds(data)
    scorers = scoring.scorers()
    ours, theirs = (s if isinstance(s, Subject) else opened(Path(s), timeout=timeout) for s in (reference, candidate))
    if not force:
        _refuse_coarser(ours, theirs)
    inside = (ours.visible(), theirs.visible()) if layers else None
    before = load_baseline(Path(baseline), theirs.coarsest) if baseline is not None else None
    wanted = _wanted(budget, theirs.coarsest)
    measured = _noise(ours, feeds, witnesses or {}) if noise else ()
    found = compare(ours.runner, theirs.runner, feeds, theirs.coarsest, scorers, labels=scoring.labels)
    allowed = wanted or default_budget(theirs.coarsest, found.outputs, found.scores)
    sha256 = feeds.sha256()
    worse = tuple(worse_than(before, found, sha256, measured)) if before is not None else ()
    runs = ours.runner.describe(), theirs.runner.describe()
    verdict = judge(found, allowed, runs[1], measured, worse, force=force)
    blame = None
    if inside is not None:
        for subject in (ours, theirs):
            subject.release()  # the layers have runners of their own
        blame = blame_on(*inside, feeds)
        if not verdict.passed and inside == (ours, theirs):  # an engine is not repaired by a run that is not its own
            worst = [sample.feed for output in found.outputs for sample in output.worst_samples]
            blame = repair_of(blame, ours, theirs, feeds, allowed, scoring, worst)
    return DriftReport(
        reference=ours.facts,
        candidate=theirs.facts,
        data=DataFacts(feeds.name, found.feeds, found.samples, sha256),
        reference_run=runs[0],
        candidate_run=runs[1],
        outputs=found.outputs,
        budget=allowed,
        verdict=verdict,
        notes=(*found.notes, *_remarks(ours, theirs, found), *(_looked_into(theirs, inside[1]) if inside else ())),
        created=created,
        seconds=round(time.monotonic() - started, 3),
        tool=f"mpdeploy {mpdeploy.__version__}",
        noise=measured,
        blame=blame,
        scores=found.scores,
    )


def _refuse_coarser(reference: Subject, candidate: Subject) -> None:
    """Refuse models that were named in the wrong order: agreement with a coarser one proves nothing."""
    if reference.coarsest.unit_roundoff > candidate.coarsest.unit_roundoff:
        raise UsageError(
            f"the reference computes in {reference.coarsest.value}, the candidate in {candidate.coarsest.value}",
            where=str(reference.path),
            remedy="name the FP32 model first and the converted one second, or ask for it with --force",
        )


def _wanted(budget: str | Budget | Settings | None, candidate: Format) -> Budget | None:
    if isinstance(budget, Settings):
        return budget.budget_for(candidate)
    return parse_budget(budget) if isinstance(budget, str) else budget


def _noise(ours: Subject, feeds: Feeds, witnesses: Mapping[str, Runner]) -> tuple[Noise, ...]:
    again = [("run again", ours.runner)]
    return measure_noise(ours.runner, itertools.chain(again, ours.other_ways(), witnesses.items()), feeds)


def _looked_into(candidate: Subject, seen: Subject) -> list[str]:
    if seen is candidate:
        return []
    return [f"the values inside are those of {seen.path}, which {candidate.path.name} was built from, under emulation"]


def _remarks(ours: Subject, theirs: Subject, found: Comparison) -> list[str]:
    remarks: list[str] = []
    if isinstance(theirs.runner, EmulatorRunner) and theirs.model is not None:  # else it has just run
        target = theirs.plan.target if theirs.plan is not None else ANY
        remarks += described(refusals(theirs.model, theirs.path, target))
    if theirs.model is not None and theirs.plan is None and plan_path_of(theirs.path).is_file():
        remarks.append(f"{plan_path_of(theirs.path).name} is no plan that this version reads: its reasons are missing")
    if ours.coarsest is not Format.FP32:
        remarks.append(f"the reference itself holds {ours.coarsest.value} tensors: it is no FP32 baseline")
    constant = [output.name for output in found.outputs if output.constant]
    if constant:
        names = ", ".join(f"'{name}'" for name in constant)
        remarks.append(f"the reference gives one number only in {names} on these data: agreement there proves little")
    if any(output.frozen for output in found.outputs):
        remarks.append("an output is the same for every sample: does the data reach it?")
    return remarks
