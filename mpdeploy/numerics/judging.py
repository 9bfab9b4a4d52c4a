"""Limits held to what was measured of a model's outputs, and the faults that no limit excuses."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mpdeploy.errors import UsageError
from mpdeploy.numerics.budget import Budget
from mpdeploy.numerics.drift import OutputDrift
from mpdeploy.numerics.limits import Limit, Metric
from mpdeploy.numerics.scores import finite
from mpdeploy.numerics.targets import TargetErrors


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


def absolute_faults(output: OutputDrift) -> Iterator[Reason]:
    """Yield the faults of an output that no budget excuses."""
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


def checks_of(outputs: Sequence[OutputDrift], budget: Budget) -> Iterator[Check]:
    """Yield every limit of the budget held to every output that has its metric.

    Raises ``UsageError`` if the budget names an output that does not exist.
    """
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
                yield Check(output.name, limit, finite(value), finite(used), limit.holds(value))


def over(check: Check) -> Reason:
    """Return the reason that a broken limit gives."""
    said = f"{check.measured:.4g}" if check.measured is not None else "not finite"
    text = f"{check.limit.metric.value} of output '{check.output}' is {said}, the limit is {check.limit}"
    return Reason("V201", check.output, text, check.measured, str(check.limit))
