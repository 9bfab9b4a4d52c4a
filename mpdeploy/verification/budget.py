"""How much drift is allowed: limits on metrics, by default or as the user writes them."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mpdeploy.errors import UsageError
from mpdeploy.numerics.drift import OutputDrift
from mpdeploy.numerics.formats import Format


class Metric(Enum):
    """A metric that a limit can name.  ``accuracy_drop`` is the reference's accuracy minus the candidate's."""

    COSINE = "cosine"
    NORM_RELATIVE = "norm_relative"
    WORST_SAMPLE = "worst_sample"
    SQNR = "sqnr"
    MAX_ABS = "max_abs"
    MEAN_ABS = "mean_abs"
    TOP1 = "top1"
    ACCURACY_DROP = "accuracy_drop"
    MATCH = "match"

    @property
    def more_is_better(self) -> bool:
        """Whether a limit is a minimum."""
        return self in (Metric.COSINE, Metric.SQNR, Metric.TOP1, Metric.MATCH)


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
class Budget:
    """Limits that all must hold, and where they come from.  NaN, collapse and the like fail under any budget.

    ``strict``: a limit whose metric no output has is broken (the user asked for it), not idle.
    """

    limits: tuple[Limit, ...]
    origin: str
    strict: bool

    def __str__(self) -> str:
        return ", ".join(map(str, self.limits))


_LIMIT = re.compile(r"^(?:(?P<output>.+):)?(?P<metric>\w+)\s*(?P<sign>>=|<=)\s*(?P<value>\S+)$")


def parse_budget(text: str) -> Budget:
    """Return the budget that ``cosine>=0.999,logits:top1>=0.995`` spells; raises ``UsageError`` if it is none."""
    limits = tuple(_parse_limit(part.strip(), text) for part in text.split(",") if part.strip())
    if not limits:
        raise UsageError("the budget is empty", where=text, remedy="write METRIC>=NUMBER, as in cosine>=0.999")
    return Budget(limits, "as given", strict=True)


def _parse_limit(part: str, text: str) -> Limit:
    match = _LIMIT.match(part)
    if not match:
        raise UsageError(f"'{part}' is no limit", where=text, remedy="write METRIC>=NUMBER or METRIC<=NUMBER")
    try:
        metric = Metric(match["metric"])
    except ValueError:
        known = ", ".join(m.value for m in Metric)
        raise UsageError(f"unknown metric '{match['metric']}'", where=text, remedy=f"use one of {known}") from None
    wanted = ">=" if metric.more_is_better else "<="
    if match["sign"] != wanted:
        raise UsageError(
            f"'{part}' would ask for a bad result", where=text, remedy=f"write {metric.value}{wanted}{match['value']}"
        )
    try:
        value = float(match["value"])
    except ValueError:
        raise UsageError(f"'{match['value']}' is no number", where=text) from None
    if math.isnan(value):
        raise UsageError("nothing is within NaN", where=text, remedy="write a number")
    return Limit(metric, value, match["output"] or "")


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


def default_budget(candidate: Format, outputs: Iterable[OutputDrift]) -> Budget:
    """Return the limits for a candidate whose coarsest format is ``candidate``, given what was measured.

    Data with labels make it a classifier: then agreement on the best class and accuracy on the labels count, too.
    """
    limits = _DEFAULTS[candidate]
    origin = f"default for {candidate.value}"
    if any(output.labelled for output in outputs):
        limits += _CLASSIFICATION[candidate]
        origin += " classifiers"
    return Budget(tuple(Limit(metric, value) for metric, value in limits), origin, strict=False)
