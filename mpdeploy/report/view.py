"""The report as words and pictures, ready for a template that decides nothing."""

from dataclasses import dataclass

from mpdeploy.numerics.drift import OutputDrift
from mpdeploy.numerics.judging import Check
from mpdeploy.numerics.limits import Metric
from mpdeploy.report import words
from mpdeploy.report.glossary import glossary
from mpdeploy.report.inside_view import Inside, inside_view, noise_text
from mpdeploy.report.pictures import TONES, Distribution, distribution
from mpdeploy.report.record import Report
from mpdeploy.report.values import Values, value_pictures
from mpdeploy.verification.record import DriftReport
from mpdeploy.verification.verdict import ScoreCheck


@dataclass(frozen=True)
class Gauge:
    """One limit: what it is, the value, the share of the allowance used in percent (at most 100) and in words."""

    label: str
    value: str
    limit: str
    percent: float
    used: str
    holds: bool


@dataclass(frozen=True)
class Quality:
    """What an output with true values is worth: by which metric, for the candidate and for the reference."""

    name: str
    candidate: str
    reference: str


@dataclass(frozen=True)
class Candidate:
    """One candidate's part of the page."""

    tone: int
    name: str
    format: str
    drift: DriftReport
    size: str
    smaller: str
    accuracy: str
    quality: Quality | None
    top1: str
    worst: str
    cosine: str
    gauges: tuple[Gauge, ...]
    samples: str
    inside: Inside | None
    values: Values | None
    noise: str


@dataclass(frozen=True)
class View:
    """The whole page."""

    report: Report
    headline: str
    candidates: tuple[Candidate, ...]
    picture: Distribution | None
    labelled: bool
    exact: bool
    ranked: bool
    targets: bool
    advice: str
    glossary: tuple[tuple[str, str], ...]
    reference_accuracy: str
    reference_size: str


LABELS = {
    Metric.COSINE: "Cosine",
    Metric.NORM_RELATIVE: "Norm-relative error",
    Metric.WORST_SAMPLE: "Worst sample",
    Metric.P99_SAMPLE: "99 % of samples",
    Metric.SQNR: "Signal to noise",
    Metric.MAX_ABS: "Largest error",
    Metric.MEAN_ABS: "Mean error",
    Metric.WORST_ULP: "Worst ulp",
    Metric.TOP1: "Top-1 agreement",
    Metric.TOP5: "Top-5 agreement",
    Metric.DIVERGENCE: "KL divergence",
    Metric.RETRIEVAL: "Nearest neighbours",
    Metric.ACCURACY_DROP: "Accuracy lost",
    Metric.MAE_INCREASE: "Error against targets, grown by",
    Metric.PSNR_DROP: "PSNR lost",
    Metric.MATCH: "Exact match",
}


_ALIKE = 1.02  # files within 2 % of each other count as equally large

_SHARES = frozenset(
    {Metric.TOP1, Metric.TOP5, Metric.RETRIEVAL, Metric.ACCURACY_DROP, Metric.MAE_INCREASE, Metric.MATCH}
)


def view_of(report: Report) -> View:
    """Return everything that the page shows."""
    candidates = tuple(_candidate(tone, drift) for tone, drift in enumerate(report.drifts))
    histograms = [
        (candidate.name, worst.histogram, _worst_limit(candidate.drift, worst.name))
        for candidate in candidates
        if (worst := worst_output(candidate.drift)) is not None
    ]
    first = report.drifts[0] if report.drifts else None
    labelled = _labelled(first) if first else None
    return View(
        report=report,
        headline=_headline(report),
        candidates=candidates,
        picture=distribution(histograms),
        labelled=labelled is not None,
        exact=any(output.exact for drift in report.drifts for output in drift.outputs),
        ranked=any(output.top1 is not None for drift in report.drifts for output in drift.outputs),
        targets=any(output.targets for drift in report.drifts for output in drift.outputs),
        advice=_advice(report),
        glossary=glossary(report.drifts),
        reference_accuracy=words.share(labelled.accuracy_reference) if labelled else "",
        reference_size=words.size(first.reference.bytes) if first else "",
    )


def worst_output(drift: DriftReport) -> OutputDrift | None:
    """Return the floating-point output with the largest error of a sample; a broken one counts as the largest."""
    floats = [output for output in drift.outputs if not output.exact and output.elements]
    return max(floats, key=_badness, default=None)


def metric_text(metric: Metric, value: float | None) -> str:
    """Return a metric's value as people read it."""
    if metric is Metric.COSINE:
        return words.cosine(value)
    if metric in _SHARES:
        return words.share(value)
    if metric is Metric.PSNR_DROP:
        return words.decibels(value, 2)
    return words.decibels(value) if metric is Metric.SQNR else words.error(value)


def file_name(path: str) -> str:
    """Return the last part of a path."""
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def _candidate(tone: int, drift: DriftReport) -> Candidate:
    worst, labelled = worst_output(drift), _labelled(drift)
    ranked = [output.top1 for output in drift.outputs if output.top1 is not None]
    ratio = drift.candidate.bytes / drift.reference.bytes if drift.reference.bytes else 1.0
    return Candidate(
        tone=tone % TONES,
        name=file_name(drift.candidate.path),
        format=drift.candidate.coarsest.value.upper(),
        drift=drift,
        size=words.size(drift.candidate.bytes),
        smaller=f"{ratio:.0%}".replace("%", " %"),
        accuracy=words.share(labelled.accuracy_candidate) if labelled else "",
        quality=_quality(drift),
        top1=words.share(min(ranked)) if ranked else words.NONE,
        worst=words.error(worst.norm_relative) if worst else words.NONE,
        cosine=words.cosine(worst.cosine) if worst else words.NONE,
        gauges=(
            *(_gauge(check, many=len(drift.outputs) > 1) for check in drift.verdict.checks),
            *map(_score_gauge, drift.verdict.score_checks),
        ),
        samples=words.count(drift.data.samples, "sample"),
        inside=inside_view(drift),
        values=value_pictures(worst.name, worst.scatter) if worst else None,
        noise=noise_text(drift),
    )


def _quality(drift: DriftReport) -> Quality | None:
    errors = next((output.targets for output in drift.outputs if output.targets), None)
    if errors is None:
        return None
    if errors.peak is not None:
        pair = errors.candidate_psnr, errors.reference_psnr
        return Quality("PSNR", *(words.decibels(value, 2) for value in pair))
    return Quality("Mean error", words.error(errors.candidate_mae), words.error(errors.reference_mae))


def _gauge(check: Check, many: bool) -> Gauge:
    label = LABELS[check.limit.metric]
    sign = "≥" if check.limit.metric.more_is_better else "≤"
    return Gauge(
        label=f"{label} · {check.output}" if many else label,
        value="exact" if check.holds and check.measured is None else metric_text(check.limit.metric, check.measured),
        limit=f"{sign} {check.limit.value:g}",
        percent=_percent(check.used),
        used=_used(check.used),
        holds=check.holds,
    )


def _score_gauge(check: ScoreCheck) -> Gauge:
    return Gauge(
        label=f"Score {check.limit.score}",
        value=words.error(check.measured),
        limit=f"{'≥' if check.limit.at_least else '≤'} {check.limit.value:g}",
        percent=_percent(check.used),
        used=_used(check.used),
        holds=check.holds,
    )


def _percent(used: float | None) -> float:
    return 100.0 if used is None or used > 1 else 100 * used


def _used(used: float | None) -> str:
    if used is None:
        return "not finite"
    if used > 1:
        return f"{used:.2g} × the limit" if used < 100 else "far beyond the limit"
    return "none used" if used == 0 else f"{100 * used:.2g} % used"


def _headline(report: Report) -> str:
    failed = [drift for drift in report.drifts if not drift.verdict.passed]
    if not failed:
        return "The candidate is within budget" if len(report.drifts) == 1 else "All candidates are within budget"
    if len(report.drifts) == 1:
        return "The candidate drifts over its budget"
    names = ", ".join(file_name(drift.candidate.path) for drift in failed)
    return f"{len(failed)} of {len(report.drifts)} candidates drift over budget: {names}"


def _advice(report: Report) -> str:
    """Which file to ship, and why; empty without a candidate."""
    passed = [drift for drift in report.drifts if drift.verdict.passed]
    if not passed:
        return "None of these models may be shipped; the reasons stand below." if report.drifts else ""
    smallest = min(drift.candidate.bytes for drift in passed)
    alike = [drift for drift in passed if drift.candidate.bytes <= _ALIKE * smallest]
    best = min(alike, key=lambda drift: _badness(worst) if (worst := worst_output(drift)) else 0.0)
    name = file_name(best.candidate.path)
    why = "within its budget"
    if len(passed) > 1:
        why += ", and nearest to FP32 of those of its size" if len(alike) > 1 else ", and the smallest"
    engines = [engine.name for engine in report.engines if engine.source == name]
    built = f" as {engines[0]}, the engine built from it" if engines else ""
    return f"Ship {name}{built}: {why}. How fast it is, mpdeploy bench measures on the machine that it is for."


def _labelled(drift: DriftReport) -> OutputDrift | None:
    return next((output for output in drift.outputs if output.labelled), None)


def _worst_limit(drift: DriftReport, output: str) -> float | None:
    for check in drift.verdict.checks:
        if check.output == output and check.limit.metric is Metric.WORST_SAMPLE:
            return check.limit.value
    return None


def _badness(output: OutputDrift) -> float:
    return float("inf") if output.worst_sample_error is None else output.worst_sample_error
