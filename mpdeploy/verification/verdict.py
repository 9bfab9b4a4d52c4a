"""Pass or fail, and why: a pure function of what was measured and what is allowed."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpdeploy.errors import UsageError
from mpdeploy.numerics.drift import OutputDrift
from mpdeploy.numerics.targets import TargetErrors
from mpdeploy.runtime.runner import Execution
from mpdeploy.verification.budget import Budget
from mpdeploy.verification.compare import Comparison
from mpdeploy.verification.limits import Limit, Metric, ScoreLimit
from mpdeploy.verification.noise import Noise, loudest
from mpdeploy.verification.scores import Score


@dataclass(frozen=True)
class Reason:
    """Why a candidate fails: a stable code, the output, a sentence, and for a limit the value that breaks it.

    V101 broken elements · V102 infinities moved · V103 the reference gives NaN · V104 constant · V105 frozen ·
    V106 shape · V107 missing · V108 nothing to compare · V109 a score is not finite · V201 over a limit · V202 a
    limit on nothing · V203 a limit below the reference's own noise · V301 the run is no evidence · V401 worse than
    the baseline.
    """

    code: str
    output: str
    text: str
    measured: float | None = None
    limit: str = ""


@dataclass(frozen=True)
class Check:
    """One limit held to one output.  ``measured`` and ``used`` (see ``Limit.used``) are None if not finite."""

    output: str
    limit: Limit
    measured: float | None
    used: float | None
    holds: bool


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
    checks, score_checks = tuple(_checks(found.outputs, budget)), tuple(_score_checks(found.scores, budget))
    reasons = [Reason("V107", name, f"output '{name}' is missing") for name in found.missing]
    for output in found.outputs:
        reasons += _absolute(output)
    if not found.samples:
        reasons.append(Reason("V108", "", "the data hold no sample"))
    elif not found.scores and not any(output.elements or output.shape_fault for output in found.outputs):
        reasons.append(Reason("V108", "", "no output held a single value on the data"))
    reasons += [_over(check) for check in checks if not check.holds]
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


def measured(output: OutputDrift, metric: Metric) -> float | None:
    """Return a metric's value on an output: None if the output has no such metric, NaN if it broke."""
    if metric is Metric.MATCH:
        return output.match if output.exact else None
    if metric is Metric.ACCURACY_DROP:
        if output.accuracy_reference is None or output.accuracy_candidate is None:
            return None
        return output.accuracy_reference - output.accuracy_candidate
    if metric in (Metric.MAE_INCREASE, Metric.PSNR_DROP):
        return _against_targets(output.targets, metric)
    by_task = {
        Metric.TOP1: output.top1,
        Metric.TOP5: output.top5,
        Metric.DIVERGENCE: output.divergence,
        Metric.RETRIEVAL: output.retrieval,
    }
    if metric in by_task:
        return by_task[metric]
    if output.exact or not output.elements:
        return None
    if metric is Metric.SQNR and output.norm_relative == 0:
        return math.inf
    value = {
        Metric.COSINE: output.cosine,
        Metric.NORM_RELATIVE: output.norm_relative,
        Metric.WORST_SAMPLE: output.worst_sample_error,
        Metric.P99_SAMPLE: output.quantiles.ninety_nine if output.quantiles else None,
        Metric.SQNR: output.sqnr_db,
        Metric.MAX_ABS: output.max_abs,
        Metric.MEAN_ABS: output.mean_abs,
        Metric.WORST_ULP: output.worst_ulp,
    }[metric]
    return math.nan if value is None else value


def _against_targets(errors: TargetErrors | None, metric: Metric) -> float | None:
    if errors is None or (metric is Metric.PSNR_DROP and errors.peak is None):
        return None
    if metric is Metric.PSNR_DROP:
        ours, theirs = errors.reference_psnr, errors.candidate_psnr
        return math.nan if ours is None or theirs is None else ours - theirs
    ours, theirs = errors.reference_mae, errors.candidate_mae
    if ours is None or theirs is None:
        return math.nan
    if ours == 0:
        return 0.0 if theirs == 0 else math.inf
    return theirs / ours - 1


def _absolute(output: OutputDrift) -> Iterator[Reason]:
    """The faults that no budget excuses."""
    name = output.name
    if output.shape_fault:
        yield Reason("V106", name, f"output '{name}' has another shape: {output.shape_fault}")
    if output.broken:
        share = f"{output.broken} of {output.elements} values"
        yield Reason("V101", name, f"{share} of output '{name}' became NaN or infinite", float(output.broken))
    if output.moved:
        yield Reason("V102", name, f"{output.moved} infinite values of output '{name}' changed", float(output.moved))
    if output.reference_nan:
        count = f"{output.reference_nan} of {output.elements} values"
        yield Reason("V103", name, f"the reference itself gives NaN in {count} of output '{name}'")
    elif output.elements and not output.exact and output.reference_inf == output.elements:
        yield Reason("V108", name, f"the reference gives no finite value in output '{name}'")
    if output.collapsed:
        yield Reason("V104", name, f"output '{name}' is constant, the reference's is not")
    elif output.frozen:
        yield Reason("V105", name, f"output '{name}' is the same for every sample, the reference's is not")


def _checks(outputs: Sequence[OutputDrift], budget: Budget) -> Iterator[Check]:
    names = [output.name for output in outputs]
    for limit in budget.limits:
        if limit.output and limit.output not in names:
            raise UsageError(
                f"the budget names an output '{limit.output}' that the models do not share",
                where=str(limit),
                remedy=f"they share {', '.join(names)}",
            )
        for output in outputs:
            value = measured(output, limit.metric)
            if value is not None and limit.output in ("", output.name):
                used = limit.used(value)
                yield Check(output.name, limit, _finite(value), _finite(used), limit.holds(value))


def _score_checks(scores: Sequence[Score], budget: Budget) -> Iterator[ScoreCheck]:
    values = {score.name: score.value for score in scores}
    for limit in budget.scores:
        if limit.score not in values:
            continue
        value = values[limit.score]
        number = math.nan if value is None else value
        used = None if value is None else _finite(limit.used(number))
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


def _over(check: Check) -> Reason:
    said = f"{check.measured:.4g}" if check.measured is not None else "not finite"
    text = f"{check.limit.metric.value} of output '{check.output}' is {said}, the limit is {check.limit}"
    return Reason("V201", check.output, text, check.measured, str(check.limit))


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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
