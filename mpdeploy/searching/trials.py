"""Plans tried on the data: each is made, carried out, run under true rounding, and judged."""

from collections import Counter
from dataclasses import dataclass

from mpdeploy.conversion.apply import apply
from mpdeploy.conversion.trial import copy_of
from mpdeploy.graph.arithmetic import low_share
from mpdeploy.graph.shapes import guessed_size
from mpdeploy.numerics.budget import Budget
from mpdeploy.numerics.default_budget import default_budget
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.calibrate import Calibration
from mpdeploy.plan.pins import Keep, Searched
from mpdeploy.plan.planner import Planned, bind, make_plan
from mpdeploy.plan.policy import Policy
from mpdeploy.plan.target import Target
from mpdeploy.runtime.choose import truthful_runner
from mpdeploy.runtime.compare import compare
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.runner import Execution, Runner
from mpdeploy.searching.record import Step
from mpdeploy.verification.subject import Subject
from mpdeploy.verification.tasks import Scoring
from mpdeploy.verification.verdict import Verdict, judge


@dataclass(frozen=True)
class Task:
    """What is searched for: the source and what runs it, the low format, what the user fixed, the data, the budget."""

    source: Subject
    reference: Runner
    low: Format
    policy: Policy
    calibration: Calibration
    keep: Keep
    low_io: bool
    target: Target
    feeds: Feeds
    budget: Budget | None
    scoring: Scoring

    def plan(self, searched: Searched) -> Planned:
        """Return the plan that follows from what was found out so far."""
        return make_plan(
            self.source.model,
            self.low,
            self.policy,
            self.calibration,
            self.keep,
            low_io=self.low_io,
            target=self.target,
            searched=searched,
        )


@dataclass(frozen=True)
class Trial:
    """A plan that was carried out, and what came of it; ``worst`` are the feeds that drifted most."""

    searched: Searched
    step: Step
    verdict: Verdict
    budget: Budget
    run: Execution
    samples: int
    worst: tuple[str, ...]


def attempt(task: Task, searched: Searched, what: str) -> Trial:
    """Return what came of the plan that follows from ``searched``; ``what`` says in words what it changes.

    Raises ``ModelError`` if the plan cannot be carried out.
    """
    planned = task.plan(searched)
    model = apply(bind(copy_of(task.source.model), planned.plan))
    runner = truthful_runner(model, str(task.source.path))
    found = compare(task.reference, runner, task.feeds, task.low, task.scoring.scorers(), labels=task.scoring.labels)
    budget = task.budget or default_budget(task.low, found.outputs, found.scores)
    run = runner.describe()
    verdict = judge(found, budget, run)
    step = Step(
        what=what,
        passed=verdict.passed,
        headline=verdict.headline,
        error=found.error,
        low=planned.plan.low_count,
        low_flops=low_share(model),
        bytes_low=_bytes_low(planned),
    )
    worst = tuple(sample.feed for output in found.outputs for sample in output.worst_samples)
    return Trial(searched, step, verdict, budget, run, found.samples, worst)


def _bytes_low(planned: Planned) -> float:
    sizes: Counter[bool] = Counter()
    for group, is_low in zip(planned.groups.all, planned.low, strict=True):
        sizes[is_low] += sum(guessed_size(value) for value in group.produces)
    total = sizes.total()
    return sizes[True] / total if total else 0.0
