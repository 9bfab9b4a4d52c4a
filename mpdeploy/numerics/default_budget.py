"""The budget that counts if the user names none."""

from collections.abc import Iterable

from mpdeploy.numerics.budget import Budget
from mpdeploy.numerics.drift import OutputDrift
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.limits import Limit, Metric, ScoreLimit
from mpdeploy.numerics.scores import Score

# Several times what good conversions of common networks show under true rounding, and far below what broken ones
# do: a drop-in FP16 ResNet or BERT stays under 0.005 norm-relative, BF16 (8 times coarser) under 0.04, while an
# overflow or a lost epsilon costs tens of percent or everything.
_DEFAULTS: dict[Format, tuple[tuple[Metric, float], ...]] = {
    Format.FP32: (
        (Metric.COSINE, 0.99999),
        (Metric.NORM_RELATIVE, 0.001),
        (Metric.WORST_SAMPLE, 0.01),
        (Metric.MATCH, 0.999),
    ),
    Format.FP16: (
        (Metric.COSINE, 0.999),
        (Metric.NORM_RELATIVE, 0.02),
        (Metric.WORST_SAMPLE, 0.1),
        (Metric.MATCH, 0.99),
    ),
    Format.BF16: (
        (Metric.COSINE, 0.99),
        (Metric.NORM_RELATIVE, 0.1),
        (Metric.WORST_SAMPLE, 0.5),
        (Metric.MATCH, 0.97),
    ),
}
_CLASSIFICATION: dict[Format, tuple[tuple[Metric, float], ...]] = {
    Format.FP32: ((Metric.TOP1, 0.999), (Metric.ACCURACY_DROP, 0.001)),
    Format.FP16: ((Metric.TOP1, 0.99), (Metric.ACCURACY_DROP, 0.01)),
    Format.BF16: ((Metric.TOP1, 0.97), (Metric.ACCURACY_DROP, 0.02)),
}
# By the names that tasks give (``verification.tasks``).
_TASKS: dict[Format, dict[str, float]] = {
    Format.FP32: {"boxes": 0.999, "box_iou": 0.99, "iou": 0.999},
    Format.FP16: {"boxes": 0.98, "box_iou": 0.95, "iou": 0.98},
    Format.BF16: {"boxes": 0.95, "box_iou": 0.9, "iou": 0.95},
}


def default_budget(candidate: Format, outputs: Iterable[OutputDrift], scores: Iterable[Score] = ()) -> Budget:
    """Return the limits for a candidate whose coarsest format is ``candidate``, given what was measured.

    Of the scores, those of tasks are limited.  Data with labels make it a classifier: then agreement on the best
    class and accuracy on the labels count, too.
    """
    limits = _DEFAULTS[candidate]
    origin = f"default for {candidate.value}"
    if any(output.labelled for output in outputs):
        limits += _CLASSIFICATION[candidate]
        origin += " classifiers"
    known = _TASKS[candidate]
    on_scores = tuple(ScoreLimit(s.name, known[s.name], at_least=True) for s in scores if s.name in known)
    return Budget(tuple(Limit(metric, value) for metric, value in limits), origin, strict=False, scores=on_scores)
