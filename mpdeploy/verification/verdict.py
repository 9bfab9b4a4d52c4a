"""Pass or fail, and why: a pure function of what was measured and what is allowed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpdeploy.numerics.budget import Budget
from mpdeploy.numerics.judging import Check, Reason, absolute_faults, checks_of, over
from mpdeploy.numerics.limits import Metric, ScoreLimit
from mpdeploy.numerics.scores import Score, finite
from mpdeploy.runtime.compare import Comparison
from mpdeploy.runtime.runner import Execution
from mpdeploy.verification.noise import Noise, loudest


@dataclass(frozen=True)
class ScoreCheck:
    """One limit held to a score; as ``Check``."""

    limit: ScoreLimit
    measured: float | None
    used: float | None
    holds: bool


@dataclass(frozen=True)
class Verdict:
    """Whether the candidate passes, in one sentence, with every reason against it and every limit that was held.

    ``forced``: the run is no evidence, and the user asked for a verdict all the same.
    """

    passed: bool
    headline: str
    reasons: tuple[Reason, ...]
    checks: tuple[Check, ...]
    score_checks: tuple[ScoreCheck, ...] = ()
    forced: bool = False


def judge(
    found: Comparison,
    budget: Budget,
    candidate: Execution,
    noise: Sequence[Noise] = (),
    worse: Sequence[Reason] = (),
    *,
    force: bool = False,
) -> Verdict:
    """Return the verdict on what was found.

    ``candidate`` says what ran; ``noise`` is the reference's own; ``worse`` are reasons that a baseline gives.  With
    ``force`` a run that is no evidence may pass.  Raises ``UsageError`` if the budget names an output that does not
    exist.
    """
    checks, score_checks = tuple(checks_of(found.outputs, budget)), tuple(_score_checks(found.scores, budget))
    reasons = [Reason("V107", name, f"output '{name}' is missing") for name in found.missing]
    for output in found.outputs:
        reasons += absolute_faults(output)
    if not found.samples:
        reasons.append(Reason("V108", "", "the data hold no sample"))
    elif not found.scores and not any(output.elements or output.shape_fault for output in found.outputs):
        reasons.append(Reason("V108", "", "no output held a single value on the data"))
    reasons += [over(check) for check in checks if not check.holds]
    reasons += [drowned for check in checks if not check.holds and (drowned := _drowned(check, noise)) is not None]
    reasons += [_score_over(check) for check in score_checks if not check.holds]
    reasons += [
        Reason("V109", "", f"score '{score.name}' is not finite") for score in found.scores if score.value is None
    ]
    if budget.strict:
        reasons += _idle(budget, checks, score_checks)
    reasons += worse
    doubtful = not candidate.evidence
    if doubtful and not force:
        reasons.append(Reason("V301", "", f"this run is no evidence: {candidate.note}"))
    if reasons:
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        headline = f"{reasons[0].text}{more}"
    else:
        headline = "every output is within budget"
    if doubtful and force:
        headline = f"{headline}; forced, although this run is no evidence"
    return Verdict(not reasons, headline, tuple(reasons), checks, score_checks, forced=doubtful and force)


def _score_checks(scores: Sequence[Score], budget: Budget) -> Iterator[ScoreCheck]:
    values = {score.name: score.value for score in scores}
    for limit in budget.scores:
        if limit.score not in values:
            continue
        value = values[limit.score]
        number = math.nan if value is None else value
        used = None if value is None else finite(limit.used(number))
        yield ScoreCheck(limit, value, used, limit.holds(number))


def _idle(budget: Budget, checks: Sequence[Check], score_checks: Sequence[ScoreCheck]) -> Iterator[Reason]:
    scored = {check.limit for check in score_checks}
    for score_limit in budget.scores:
        if score_limit not in scored:
            text = f"nothing gave a score '{score_limit.score}' to hold to {score_limit}"
            yield Reason("V202", "", text, limit=str(score_limit))
    held = {check.limit for check in checks}
    for limit in budget.limits:
        if limit not in held:
            text = f"no output has a {limit.metric.value} to hold to {limit}"
            yield Reason("V202", limit.output, text, limit=str(limit))


def _score_over(check: ScoreCheck) -> Reason:
    said = f"{check.measured:.4g}" if check.measured is not None else "not finite"
    text = f"score '{check.limit.score}' is {said}, the limit is {check.limit}"
    return Reason("V201", "", text, check.measured, str(check.limit))


def _drowned(check: Check, noise: Sequence[Noise]) -> Reason | None:
    """The remark that the reference itself, run in another way, would break a limit, too."""
    own = loudest(noise, check.output)
    if own is None:
        return None
    value = {
        Metric.COSINE: own.cosine,
        Metric.NORM_RELATIVE: own.norm_relative,
        Metric.WORST_SAMPLE: own.worst_sample,
        Metric.MAX_ABS: own.max_abs,
        Metric.MATCH: own.match,
    }.get(check.limit.metric)
    if value is None or check.limit.holds(value):
        return None
    text = f"the reference itself, {own.way}, has {check.limit.metric.value} {value:.4g} in '{check.output}'"
    return Reason("V203", check.output, f"{text}: no candidate can hold {check.limit}", value, str(check.limit))
