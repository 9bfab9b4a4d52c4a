"""Limits on what was measured: on a metric of an output, or on a score of the user's."""

import math
from dataclasses import dataclass
from enum import Enum


class Metric(Enum):
    """A metric that a limit can name, as ``OutputDrift`` explains them.

    ``p99_sample`` is the error that 99 % of the samples do not exceed, ``accuracy_drop`` the reference's accuracy
    minus the candidate's, ``divergence`` the mean KL divergence in nats.  Where data hold targets, ``mae_increase`` is
    the candidate's mean absolute error against them over the reference's, less 1, and ``psnr_drop`` the reference's
    PSNR minus the candidate's in dB.
    """

    COSINE = "cosine"
    NORM_RELATIVE = "norm_relative"
    WORST_SAMPLE = "worst_sample"
    P99_SAMPLE = "p99_sample"
    SQNR = "sqnr"
    MAX_ABS = "max_abs"
    MEAN_ABS = "mean_abs"
    WORST_ULP = "worst_ulp"
    TOP1 = "top1"
    TOP5 = "top5"
    DIVERGENCE = "divergence"
    RETRIEVAL = "retrieval"
    ACCURACY_DROP = "accuracy_drop"
    MAE_INCREASE = "mae_increase"
    PSNR_DROP = "psnr_drop"
    MATCH = "match"

    @property
    def more_is_better(self) -> bool:
        """Whether a limit is a minimum."""
        return self in _MORE_IS_BETTER

    @property
    def is_share(self) -> bool:
        """Whether the best value is 1."""
        return self in _MORE_IS_BETTER and self is not Metric.SQNR


_MORE_IS_BETTER = frozenset({Metric.COSINE, Metric.SQNR, Metric.TOP1, Metric.TOP5, Metric.RETRIEVAL, Metric.MATCH})


@dataclass(frozen=True)
class Limit:
    """One metric's limit, for the output named, or for every output that has the metric if ``output`` is empty."""

    metric: Metric
    value: float
    output: str = ""

    def holds(self, measured: float) -> bool:
        """Whether a measured value is within the limit; NaN never is."""
        return measured >= self.value if self.metric.more_is_better else measured <= self.value

    def used(self, measured: float) -> float:
        """Return the share of the allowance that a measured value uses: 0 is perfect, over 1 breaks the limit.

        For metrics whose best value is 1 the allowance is the distance to 1, for SQNR the amplitude of the noise.
        """
        if self.metric is Metric.SQNR:
            return 0.0 if measured == math.inf else 10.0 ** ((self.value - measured) / 20)
        if self.metric.more_is_better:
            measured, allowed = 1 - measured, 1 - self.value
        else:
            allowed = self.value
        if measured <= 0:
            return 0.0
        return measured / allowed if allowed > 0 else math.inf

    def __str__(self) -> str:
        sign = ">=" if self.metric.more_is_better else "<="
        return f"{self.output + ':' if self.output else ''}{self.metric.value}{sign}{self.value:g}"


@dataclass(frozen=True)
class ScoreLimit:
    """A limit on a score (see ``numerics.scores``): a minimum if ``at_least``, else a maximum."""

    score: str
    value: float
    at_least: bool

    def holds(self, measured: float) -> bool:
        """Whether a measured value is within the limit; NaN never is."""
        return measured >= self.value if self.at_least else measured <= self.value

    def used(self, measured: float) -> float:
        """Return how much of the limit a measured value uses: over 1 breaks it."""
        better, worse = (measured, self.value) if self.at_least else (self.value, measured)
        if self.holds(measured):
            return min(1.0, max(0.0, worse / better)) if better > 0 else 0.0
        return max(1.0 + 1e-9, worse / better) if better > 0 else math.inf

    def __str__(self) -> str:
        return f"{SCORE_PREFIX}{self.score}{'>=' if self.at_least else '<='}{self.value:g}"


SCORE_PREFIX = "score."
