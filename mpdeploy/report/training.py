"""The picture of a training: one HTML page from its telemetry."""

from collections.abc import Sequence
from dataclasses import dataclass

from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.telemetry import ModuleRange, Sample, StepLine, TelemetryHeader
from mpdeploy.numerics.training import TrainingRecord
from mpdeploy.report import curves
from mpdeploy.report.render import rendered

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class LayerRow:
    """One layer's gradients, means over all looks, in percent: zero without and with the scale, and so on."""

    name: str
    elements: int
    zero_without: float
    zero_with: float
    subnormal_without: float
    subnormal_with: float
    overflow_with: float

    @property
    def rescued(self) -> float:
        """Percent of the elements that only the scale keeps from being zero."""
        return max(self.zero_without - self.zero_with, 0.0)


@dataclass(frozen=True)
class RangeRow:
    """What a module's output reached over all looks, and how much of the format's range that takes, in percent."""

    name: str
    low: float
    high: float
    share: float
    nonfinite: int


@dataclass(frozen=True)
class Histogram:
    """Exponents of the unscaled gradients over all looks, and marks on their axis in percent from the left."""

    path: str
    ticks: tuple[tuple[float, str], ...]
    normal: float
    zero: float
    scaled_zero: float


def training_page(header: TelemetryHeader, lines: Sequence[StepLine], record: TrainingRecord | None = None) -> str:
    """Return the page: no script, no request, light and dark; what comes from the recipe is escaped.

    ``lines`` holds at least one step.
    """
    judged = Format(header.format)
    samples = [line.sample for line in lines if line.sample]
    loss = [(line.step, line.loss) for line in lines if line.sample]
    norm = [(line.step, line.grad_norm) for line in lines if line.sample]
    scale = [point for line in lines for point in ((line.step, line.scale_before), (line.step, line.scale_after))]
    drawn = [
        curves.curve("Loss", loss, logarithmic=all(value is not None and value > 0 for _, value in loss)),
        curves.curve("Gradient norm", norm, logarithmic=True),
        curves.curve("Loss scale", scale, logarithmic=True, stepped=True) if _moves(scale) else None,
    ]
    return rendered(
        "training.html",
        {
            "header": header,
            "last": lines[-1],
            "loss": next((value for _, value in reversed(loss) if value is not None), None),
            "curves": [(tone, one) for tone, one in enumerate(drawn) if one is not None],
            "ticks": curves.ticks(loss or scale),
            "width": int(curves.WIDTH),
            "height": int(curves.HEIGHT),
            "histogram": _histogram(samples, judged, lines[-1].scale_after),
            "layers": _layers(samples),
            "ranges": _ranges(samples, judged),
            "format": judged.value.upper(),
        },
    )


def _moves(points: Sequence[tuple[int, float]]) -> bool:
    return len({value for _, value in points}) > 1


def _layers(samples: Sequence[Sample]) -> list[LayerRow]:
    rows = []
    for name in dict.fromkeys(layer.name for sample in samples for layer in sample.layers):
        looks = [layer for sample in samples for layer in sample.layers if layer.name == name]

        def mean(values: list[float]) -> float:
            return 100 * sum(values) / len(values)

        rows.append(
            LayerRow(
                name,
                looks[0].elements,
                mean([look.without_scale.zero for look in looks]),
                mean([look.with_scale.zero for look in looks]),
                mean([look.without_scale.subnormal for look in looks]),
                mean([look.with_scale.subnormal for look in looks]),
                mean([look.with_scale.overflow for look in looks]),
            )
        )
    return rows


def _ranges(samples: Sequence[Sample], judged: Format) -> list[RangeRow]:
    seen: dict[str, list[ModuleRange]] = {}
    for sample in samples:
        for item in sample.activations:
            seen.setdefault(f"{item.module or '(the model)'}{f'[{item.index}]' if item.index else ''}", []).append(item)
    rows = []
    for name, items in seen.items():
        low = min((item.low for item in items if item.low is not None), default=0.0)
        high = max((item.high for item in items if item.high is not None), default=0.0)
        share = 100 * max(abs(low), abs(high)) / judged.max
        rows.append(RangeRow(name, low, high, share, sum(item.nonfinite for item in items)))
    return rows


def _histogram(samples: Sequence[Sample], judged: Format, scale: float) -> Histogram | None:
    if not samples or not any(any(sample.exponents) for sample in samples):
        return None
    lowest = samples[0].lowest
    total = [sum(column) for column in zip(*(sample.exponents for sample in samples), strict=True)]
    places = [place for place, share in enumerate(total) if share]
    facts = judged.facts
    normal, zero = facts.min_exponent, facts.min_exponent - facts.precision + 1
    shift = round(scale).bit_length() - 1 if scale >= 1 else 0
    # Wide enough for the gradients and for the format's limits, where these are near.
    limits = [limit - lowest for limit in (normal, zero, zero - shift) if 0 <= limit - lowest < len(total)]
    left, right = min([*places, *limits]), max([*places, *limits]) + 1

    def at(exponent: int) -> float:
        return min(100.0, max(-1.0, 100 * (exponent - lowest - left) / (right - left)))

    step = max(1, (right - left) // 8)
    marks = tuple((at(e), "2" + str(e).translate(_RAISED)) for e in range(lowest + left, lowest + right + 1, step))
    return Histogram(curves.bars(total[left:right]), marks, at(normal), at(zero), at(zero - shift))
