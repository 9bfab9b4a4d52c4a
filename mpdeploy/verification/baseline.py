"""Is the drift worse than it was in an earlier report, say that of the last release?"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mpdeploy import records
from mpdeploy.errors import UsageError
from mpdeploy.files import readable_file
from mpdeploy.numerics.drift import OutputDrift
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.judging import Reason, measured
from mpdeploy.numerics.limits import Metric
from mpdeploy.numerics.scores import Score
from mpdeploy.runtime.compare import Comparison
from mpdeploy.verification.noise import Noise, loudest
from mpdeploy.verification.record import REPORT_SCHEMA, DriftReport

SLACK = 0.1  # how much worse, as a share of the baseline's error, is still the same
_STEP = 1e-3  # shares of samples may wander by this much
_FLOOR = 1e-7  # errors below float32's own

_WATCHED = (
    Metric.NORM_RELATIVE,
    Metric.WORST_SAMPLE,
    Metric.COSINE,
    Metric.TOP1,
    Metric.ACCURACY_DROP,
    Metric.MATCH,
)
_SHARES = frozenset({Metric.TOP1, Metric.ACCURACY_DROP, Metric.MATCH})
_MORE_IS_BETTER = frozenset({"boxes", "box_iou", "iou"})  # scores of tasks


def load_baseline(path: Path, candidate: Format) -> DriftReport:
    """Return the comparison in a ``report.json`` whose candidate has the same coarsest format.

    Raises ``UsageError`` if the file is no report or holds no such candidate.
    """
    content = readable_file(path, "baseline").read_bytes()
    try:
        document: Any = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the baseline is not a JSON document: {error}", where=str(path)) from None
    for drift in _drifts_in(document, str(path)):
        report = records.from_json(DriftReport, json.dumps(drift).encode(), str(path))
        if report.candidate.coarsest is candidate:
            return report
    raise UsageError(
        f"the baseline holds no {candidate.value} candidate", where=str(path), remedy="verify one and keep its report"
    )


def _drifts_in(document: Any, where: str) -> list[Any]:
    if not isinstance(document, dict) or not isinstance(document.get("drifts"), list):
        return [document]
    if (found := document.get("schema")) != REPORT_SCHEMA:
        raise UsageError(f"the baseline has schema {found!r}, this version reads {REPORT_SCHEMA!r}", where=where)
    return list(document["drifts"])


def worse_than(baseline: DriftReport, found: Comparison, data_sha256: str, noise: Sequence[Noise]) -> Iterator[Reason]:
    """Yield a reason for each metric that got worse by more than a tenth and by more than noise.

    Raises ``UsageError`` if the baseline was measured on other data: then the numbers say nothing.
    """
    if baseline.data.sha256 != data_sha256:
        raise UsageError(
            "the baseline was measured on other data",
            where=baseline.data.source,
            remedy="verify the old candidate on these data and take that report",
        )
    before = {output.name: output for output in baseline.outputs}
    for output in found.outputs:
        if output.name in before:
            yield from _worse_output(before[output.name], output, loudest(noise, output.name))
    scores = {score.name: score for score in baseline.scores}
    for score in found.scores:
        if score.name in scores and score.name in _MORE_IS_BETTER:
            yield from _worse_score(scores[score.name], score)


def _worse_output(old: OutputDrift, new: OutputDrift, noise: Noise | None) -> Iterator[Reason]:
    for metric in _WATCHED:
        was, now = measured(old, metric), measured(new, metric)
        if was is None or now is None:
            continue
        allowed = _badness(metric, was) * (1 + SLACK) + _tolerance(metric, noise)
        if _badness(metric, now) > allowed:
            text = f"{metric.value} of output '{new.name}' was {was:.4g} in the baseline and is {now:.4g}"
            yield Reason("V401", new.name, text, now, f"baseline {was:.4g}")


def _worse_score(old: Score, new: Score) -> Iterator[Reason]:
    if old.value is not None and new.value is not None and 1 - new.value > (1 - old.value) * (1 + SLACK) + _STEP:
        text = f"score '{new.name}' was {old.value:.4g} in the baseline and is {new.value:.4g}"
        yield Reason("V401", "", text, new.value, f"baseline {old.value:.4g}")


def _badness(metric: Metric, value: float) -> float:
    return 1 - value if metric.more_is_better else value


def _tolerance(metric: Metric, noise: Noise | None) -> float:
    if metric in _SHARES:
        return _STEP
    if noise is None:
        return _FLOOR
    own = {
        Metric.COSINE: None if noise.cosine is None else 1 - noise.cosine,
        Metric.NORM_RELATIVE: noise.norm_relative,
        Metric.WORST_SAMPLE: noise.worst_sample,
    }[metric]
    return max(_FLOOR, own or 0.0)
