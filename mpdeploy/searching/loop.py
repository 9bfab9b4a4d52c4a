"""The search itself: from which plans it starts, and how it goes down from them."""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mpdeploy.conversion.api import write
from mpdeploy.conversion.trial import copy_of
from mpdeploy.errors import ModelError, VerificationFailed
from mpdeploy.graph.arithmetic import flops
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.pins import Searched
from mpdeploy.plan.planner import Planned, bind
from mpdeploy.plan.reasons import SOFT
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.searching.descent import Unit, widest
from mpdeploy.searching.record import Step
from mpdeploy.searching.trials import Task, Trial, attempt
from mpdeploy.verification.inside import blame_on, repair_of
from mpdeploy.verification.subject import opened

Progress = Callable[[Step], None]
_SOFT = {code.value for code in SOFT}
_ENOUGH = 0.95  # of the FLOPs low: then no other start is tried


@dataclass(frozen=True)
class Found:
    """The best plan within the budget, all plans tried, and whether everything was asked that could be."""

    best: Trial
    steps: tuple[Step, ...]
    complete: bool


@dataclass
class Search:
    """A search for ``task`` that lowers ``trials`` plans at most from each start and tells ``progress`` of each."""

    task: Task
    trials: int
    progress: Progress
    steps: list[Step] = field(default_factory=list)

    def run(self) -> Found:
        """Return the best plan; raise ``VerificationFailed`` if none with anything low is within the budget."""
        start = self._seen(attempt(self.task, Searched(), "by the policy's rules"))
        planned = self.task.plan(Searched())
        if start.verdict.passed:
            found = [self._lowered(start, {}, planned)]
        else:
            found = list(self._repaired(start, planned))
            if not found or (found[0].best.step.low_flops or 0) < _ENOUGH:
                found += self._built_up(planned)
        best = max(found, key=_worth, default=None)
        if best is None or not best.best.step.low:
            raise self._hopeless(start)
        return replace(best, steps=tuple(self.steps))

    def _repaired(self, start: Trial, planned: Planned) -> Iterator[Found]:
        """From what the rules make, with those operators back in FP32 that the drift along the graph blames."""
        kept = self._blamed(start, planned.plan)
        if kept:
            yield from self._from(Searched(kept), f"{len(kept)} operators back to FP32", planned)

    def _built_up(self, planned: Planned) -> Iterator[Found]:
        """From FP32 throughout, one operator after the other."""
        low = [d.node for d in planned.plan.decisions if d.format is not Format.FP32]
        yield from self._from(Searched(dict.fromkeys(low, "not asked any more")), "everything in FP32", planned)

    def _from(self, searched: Searched, what: str, planned: Planned) -> Iterator[Found]:
        """Go down from what was kept in FP32, if that is within the budget."""
        try:
            base = self._seen(attempt(self.task, searched, what))
        except ModelError:  # formats that cannot stand side by side: no start
            return
        if base.verdict.passed:
            yield self._lowered(base, searched.kept, planned)

    def _lowered(self, base: Trial, kept: Mapping[str, str], planned: Planned) -> Found:
        """Go down from a plan within the budget as far as it holds."""
        best, lowest = base, 0
        why: dict[str, str] = {}

        def works(units: Sequence[Unit]) -> bool:
            nonlocal best, lowest
            down = {unit.name for unit in units}
            try:
                trial = self._seen(attempt(self.task, _searched(kept, down, {}), _words(units[lowest:])))
            except ModelError as error:
                why.update(dict.fromkeys(down, error.what))
                return False
            if trial.verdict.passed:
                best, lowest = trial, len(units)
            else:
                why.update(dict.fromkeys(down, trial.verdict.headline))
            return trial.verdict.passed

        units = _units(planned, kept)
        found = widest(units, works, self.trials, whole_fails=bool(kept) and all(unit.name in kept for unit in units))
        refused = {unit.name: why.get(unit.name, self.steps[0].headline) for unit in found.refused}
        searched = _searched(kept, {unit.name for unit in found.freed}, refused)
        complete = len(found.freed) + len(found.refused) == len(units)
        return Found(replace(best, searched=searched), (), complete)

    def _blamed(self, start: Trial, plan: PrecisionPlan) -> dict[str, str]:
        """Return which decisions go back to FP32, by what the drift along the graph says; none if that fails."""
        with tempfile.TemporaryDirectory(prefix="mpdeploy-") as folder:
            path = Path(folder) / "start.onnx"
            task = self.task
            write(bind(copy_of(task.source.model), plan), task.source.path, path)
            theirs = opened(path, timeout=task.source.timeout)
            blame = blame_on(task.source, theirs, task.feeds)
            repair = repair_of(blame, task.source, theirs, task.feeds, start.budget, task.scoring, start.worst).repair
        if repair is None or not repair.passed:
            return {}
        nodes = set(repair.nodes)
        return {d.node: start.verdict.headline for d in plan.decisions if {d.node, d.node.rpartition(":")[0]} & nodes}

    def _seen(self, trial: Trial) -> Trial:
        self.steps.append(trial.step)
        self.progress(trial.step)
        return trial

    def _hopeless(self, start: Trial) -> VerificationFailed:
        why = "nothing can be low" if start.verdict.passed else start.verdict.headline
        return VerificationFailed(
            f"no plan with {self.task.low.value} in it is within the budget: {why}",
            where=str(self.task.source.path),
            remedy="allow more drift with --budget, or use --precision bf16 where numbers overflow",
        )


def _worth(found: Found) -> float:
    """What a plan is worth: what is low of its arithmetic and of its bytes; time goes into either."""
    step = found.best.step
    return (step.low_flops or 0.0) + step.bytes_low


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


def _words(units: Sequence[Unit]) -> str:
    kinds = list(dict.fromkeys(unit.op for unit in units))
    shown = ", ".join(kinds[:3]) + (", …" if len(kinds) > 3 else "")
    return f"{len(units)} more lowered ({shown})"
