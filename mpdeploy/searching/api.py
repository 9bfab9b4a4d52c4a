"""`mpdeploy.search`: the plan with the most in the low format whose measured drift stays within the budget."""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mpdeploy.conversion import stamp
from mpdeploy.conversion.api import low_format, write
from mpdeploy.conversion.trial import copy_of
from mpdeploy.errors import UsageError, VerificationFailed
from mpdeploy.graph.arithmetic import flops
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.calibrate import calibrate
from mpdeploy.plan.planner import Keep, Planned, Searched, bind
from mpdeploy.plan.policy import policy_named
from mpdeploy.plan.reasons import SOFT
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.runtime.feeds import Data, as_feeds
from mpdeploy.searching.descent import Unit, widest
from mpdeploy.searching.record import SearchResult, Step
from mpdeploy.searching.trials import Task, Trial, attempt
from mpdeploy.verification.budget import Budget, parse_budget
from mpdeploy.verification.inside import blame_on, repair_of
from mpdeploy.verification.settings import Settings
from mpdeploy.verification.subject import opened
from mpdeploy.verification.tasks import NO_SCORING, Scoring

TRIALS = 40
_SOFT = {code.value for code in SOFT}

Progress = Callable[[Step], None]


def search(
    source: str | Path,
    output: str | Path,
    *,
    precision: str,
    data: Data,
    budget: str | Budget | Settings | None = None,
    policy: str | None = None,
    keep_fp32: tuple[str, ...] = (),
    op_fp32: tuple[str, ...] = (),
    low_io: bool = False,
    scoring: Scoring = NO_SCORING,
    trials: int = TRIALS,
    progress: Progress | None = None,
) -> SearchResult:
    """Convert ``source`` with as much in the low format as the budget allows, and write it to ``output``.

    Starts from the plan that the policy's rules make.  If that drifts over the budget on the data, operators go back to
    FP32 until it holds; then what rules keep in FP32 for caution is lowered as far as it goes on holding.  Every
    plan is judged on all of the data, under true rounding; at most ``trials`` plans are lowered.  What is FP32 for a
    hard reason (a type rule, a measured overflow, the user's word) stays so.  ``progress`` is called with each plan
    tried.  The other arguments are those of ``convert`` and ``verify``.

    Raises ``VerificationFailed``, and writes nothing, if no plan with anything in the low format is within the
    budget; ``UsageError`` and ``ModelError`` as ``convert`` and ``verify`` do.
    """
    began = time.monotonic()
    source, output = Path(source), Path(output)
    if trials < 1:
        raise UsageError("a search tries at least one plan", where=f"--trials {trials}")
    task = _task(source, precision, data, budget, policy, Keep(keep_fp32, op_fp32), scoring, low_io=low_io)
    found = _Search(task, trials, progress or (lambda step: None)).run()
    task.source.release()
    planned = task.plan(found.best.searched)
    conversion = write(bind(copy_of(task.source.model), planned.plan), source, output)
    return SearchResult(
        conversion=conversion,
        budget=found.best.budget,
        verdict=found.best.verdict,
        run=found.best.run,
        steps=tuple(found.steps),
        kept=tuple(found.best.searched.kept),
        freed=tuple(found.best.searched.freed),
        complete=found.complete,
        data=task.feeds.name,
        samples=found.best.samples,
        seconds=round(time.monotonic() - began, 3),
    )


def _task(
    source: Path,
    precision: str,
    data: Data,
    budget: str | Budget | Settings | None,
    policy: str | None,
    keep: Keep,
    scoring: Scoring,
    *,
    low_io: bool,
) -> Task:
    low = low_format(precision)
    subject = opened(source)
    if stamp.is_converted(subject.model, low) or subject.coarsest is not Format.FP32:
        raise UsageError(
            f"the model holds {subject.coarsest.value} tensors already",
            where=str(source),
            remedy="search on the FP32 model that it came from",
        )
    feeds = as_feeds(data)
    wanted = budget.budget_for(low) if isinstance(budget, Settings) else budget
    return Task(
        source=subject,
        low=low,
        policy=policy_named(policy, with_data=True),
        calibration=calibrate(subject.model, feeds, str(source), feeds.name),
        keep=keep,
        low_io=low_io,
        feeds=feeds,
        budget=parse_budget(wanted) if isinstance(wanted, str) else wanted,
        scoring=scoring,
    )


@dataclass(frozen=True)
class _Found:
    best: Trial
    steps: list[Step]
    complete: bool


@dataclass
class _Search:
    task: Task
    trials: int
    progress: Progress
    steps: list[Step] = field(default_factory=list)

    def run(self) -> _Found:
        start = self._try(Searched(), "by the policy's rules")
        if start is None:  # `convert` tells why
            raise UsageError("the model cannot be converted", where=str(self.task.source.path))
        planned = self.task.plan(Searched())
        plan = planned.plan
        kept = {} if start.verdict.passed else self._kept(start, plan)
        base = self._try(Searched(kept), f"{len(kept)} operators back to FP32") if kept else start
        if base is None or not base.verdict.passed:
            kept = {name: "everything is FP32 at first" for name in _low_names(plan)}
            base = self._try(Searched(kept), "everything in FP32")
        if base is None or not base.verdict.passed:
            raise self._hopeless(base.verdict.headline if base else "it cannot be FP32 as a whole")
        return self._lowered(base, kept, planned)

    def _lowered(self, base: Trial, kept: Mapping[str, str], planned: Planned) -> _Found:
        """Go down from a plan within the budget as far as it holds."""
        best, lowest = base, 0
        why: dict[str, str] = {}

        def works(units: Sequence[Unit]) -> bool:
            nonlocal best, lowest
            down = {unit.name for unit in units}
            trial = self._try(_searched(kept, down, {}), _words(units[lowest:]))
            if trial is not None and trial.verdict.passed:
                best, lowest = trial, len(units)
                return True
            why.update(dict.fromkeys(down, trial.verdict.headline if trial else "such a model is not valid"))
            return False

        units = _units(planned, kept)
        found = widest(units, works, self.trials, whole_fails=bool(kept))
        refused = {unit.name: why.get(unit.name, self.steps[0].headline) for unit in found.refused}
        searched = _searched(kept, {unit.name for unit in found.freed}, refused)
        if not self.task.plan(searched).plan.low_count:
            raise self._hopeless("nothing can be low")
        complete = len(found.freed) + len(found.refused) == len(units)
        return _Found(replace(best, searched=searched), self.steps, complete)

    def _kept(self, start: Trial, plan: PrecisionPlan) -> dict[str, str]:
        """Return which decisions go back to FP32, by what the drift along the graph says; none if that fails."""
        with tempfile.TemporaryDirectory(prefix="mpdeploy-") as folder:
            path = Path(folder) / "start.onnx"
            task = self.task
            write(bind(copy_of(task.source.model), plan), task.source.path, path)
            theirs = opened(path)
            blame = blame_on(task.source, theirs, task.feeds)
            repair = repair_of(blame, task.source, theirs, task.feeds, start.budget, task.scoring, start.worst).repair
        if repair is None or not repair.passed:
            return {}
        nodes = set(repair.nodes)
        return {d.node: start.verdict.headline for d in plan.decisions if {d.node, d.node.rpartition(":")[0]} & nodes}

    def _try(self, searched: Searched, what: str) -> Trial | None:
        trial = attempt(self.task, searched, what)
        if trial is not None:
            self.steps.append(trial.step)
            self.progress(trial.step)
        return trial

    def _hopeless(self, why: str) -> VerificationFailed:
        return VerificationFailed(
            f"no plan with {self.task.low.value} in it is within the budget: {why}",
            where=str(self.task.source.path),
            remedy="allow more drift with --budget, or use --precision bf16 where numbers overflow",
        )


def _searched(kept: Mapping[str, str], down: set[str], refused: Mapping[str, str]) -> Searched:
    still = {name: why for name, why in kept.items() if name not in down}
    return Searched(still | dict(refused), {name: "tried on the data" for name in down if name not in kept})


def _units(planned: Planned, kept: Mapping[str, str]) -> list[Unit]:
    """What may go down: what rules keep in FP32 for caution and what the search went back with, most FLOPs first."""
    arithmetic: Counter[str] = Counter()
    for group in planned.groups.all:
        arithmetic[group.name] += flops(group.node)
    decisions = planned.plan.decisions
    soft = [d for d in decisions if d.format is Format.FP32 and d.code in _SOFT and d.node not in kept]
    back = [d for d in decisions if d.node in kept]
    units = dict.fromkeys(Unit(d.node, d.op) for d in (*soft, *back))
    return sorted(units, key=lambda unit: -arithmetic[unit.name])


def _low_names(plan: PrecisionPlan) -> list[str]:
    return [d.node for d in plan.decisions if d.format is not Format.FP32]


def _words(units: Sequence[Unit]) -> str:
    kinds = list(dict.fromkeys(unit.op for unit in units))
    shown = ", ".join(kinds[:3]) + (", …" if len(kinds) > 3 else "")
    return f"{len(units)} more lowered ({shown})"
