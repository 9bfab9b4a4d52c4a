"""`mpdeploy.search`: the plan with the most in the low format whose measured drift stays within the budget."""

import time
from pathlib import Path

from mpdeploy.arguments import Precision, Words, as_low_format, as_words
from mpdeploy.conversion import stamp
from mpdeploy.conversion.api import plan_path_of, require_onnx_name, write
from mpdeploy.conversion.trial import copy_of
from mpdeploy.errors import UsageError
from mpdeploy.numerics.budget import Budget, parse_budget
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.calibrate import calibrate
from mpdeploy.plan.pins import Keep
from mpdeploy.plan.planner import bind
from mpdeploy.plan.policy import policy_named
from mpdeploy.plan.target import target_named
from mpdeploy.runtime.apart import model_outputs, require_apart
from mpdeploy.runtime.feeds import Data, as_feeds
from mpdeploy.runtime.remembered import Remembered
from mpdeploy.searching.loop import Progress, Search
from mpdeploy.searching.record import SearchResult
from mpdeploy.searching.trials import Task
from mpdeploy.verification.settings import Settings
from mpdeploy.verification.subject import opened
from mpdeploy.verification.tasks import NO_SCORING, Scoring

TRIALS = 40


def search(
    source: str | Path,
    output: str | Path,
    *,
    precision: Precision,
    data: Data,
    budget: str | Budget | Settings | None = None,
    policy: str | None = None,
    keep_fp32: Words = (),
    op_fp32: Words = (),
    low_io: bool = False,
    target: str | None = None,
    scoring: Scoring = NO_SCORING,
    trials: int = TRIALS,
    progress: Progress | None = None,
    timeout: float | None = None,
) -> SearchResult:
    """Convert ``source`` with as much in the low format as the budget allows, and write it to ``output``.

    Starts from the plan that the policy's rules make.  If that drifts over the budget on the data, operators go back to
    FP32 until it holds, those that the drift along the graph blames, or all of them; then they, and what rules keep in
    FP32 for caution, are lowered as far as it goes on holding, the most FLOPs first.  Every plan is judged on all of
    the data, under true rounding; at most ``trials`` plans are lowered from each start.  What is FP32 for a hard reason
    (a type rule, a measured overflow, the user's word) stays so.  ``progress`` is called with each plan tried.  The
    other arguments are those of ``convert`` and ``verify``.

    Raises ``VerificationFailed``, and writes nothing, if no plan with anything in the low format is within the
    budget; ``UsageError`` and ``ModelError`` as ``convert`` and ``verify`` do.
    """
    began = time.monotonic()
    source, output = Path(source), Path(output)
    if trials < 1:
        raise UsageError("a search tries at least one plan", where=f"--trials {trials}")
    require_onnx_name(output)
    require_apart((*model_outputs(output), plan_path_of(output)), models=(source,), others=(data, *scoring.metrics))
    task = _task(
        source,
        precision,
        data,
        budget,
        policy,
        Keep(as_words(keep_fp32), as_words(op_fp32)),
        scoring,
        low_io=low_io,
        target=target,
        timeout=timeout,
    )
    found = Search(task, trials, progress or (lambda step: None)).run()
    planned = task.plan(found.best.searched)
    conversion = write(bind(copy_of(task.source.model), planned.plan), source, output)
    return SearchResult(
        conversion=conversion,
        budget=found.best.budget,
        verdict=found.best.verdict,
        run=found.best.run,
        steps=found.steps,
        found=found.best.step,
        kept=tuple(found.best.searched.kept),
        freed=tuple(found.best.searched.freed),
        complete=found.complete,
        data=task.feeds.name,
        samples=found.best.samples,
        seconds=round(time.monotonic() - began, 3),
    )


def _task(
    source: Path,
    precision: Precision,
    data: Data,
    budget: str | Budget | Settings | None,
    policy: str | None,
    keep: Keep,
    scoring: Scoring,
    *,
    low_io: bool,
    target: str | None,
    timeout: float | None,
) -> Task:
    low = as_low_format(precision)
    subject = opened(source, timeout=timeout)
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
        reference=Remembered(lambda: subject.runner),
        low=low,
        policy=policy_named(policy, with_data=True),
        calibration=calibrate(subject.model, feeds, str(source), feeds.name),
        keep=keep,
        low_io=low_io,
        target=target_named(target),
        feeds=feeds,
        budget=parse_budget(wanted) if isinstance(wanted, str) else wanted,
        scoring=scoring,
    )
