"""The picture of a training: one HTML page from its telemetry."""

from collections.abc import Sequence
from dataclasses import dataclass

from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.telemetry import ModuleRange, Sample, StepLine, TelemetryHeader
from mpdeploy.numerics.training import TrainingRecord
from mpdeploy.report import curves
from mpdeploy.report.render import rendered
from mpdeploy.report.training_facts import epoch_rows, facts, figures, session_rows


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
    """What a module's output reached over all looks, and how much of the format's range that takes, in words."""

    name: str
    low: str
    high: str
    share: str
    nonfinite: int


@dataclass(frozen=True)
class Limit:
    """A limit of the format within the picture: its colour, how far from the left in percent, and what it is."""

    tone: int
    left: float
    name: str


@dataclass(frozen=True)
class Histogram:
    """Exponents of the unscaled gradients over all looks, marks on their axis, and the format's limits.

    ``beyond`` says in words where the limits lie that are not within the picture.
    """

    path: str
    ticks: tuple[curves.Mark, ...]
    limits: tuple[Limit, ...]
    beyond: tuple[str, ...]


def training_page(header: TelemetryHeader, lines: Sequence[StepLine], record: TrainingRecord | None = None) -> str:
    """Return the page: no script, no request, light and dark; what comes from the recipe is escaped.

    ``lines`` holds at least one step.  Without a record the page says what the lines alone tell.
    """
    judged = Format(header.format)
    samples = [line.sample for line in lines if line.sample]
    return rendered(
        "training.html",
        {
            "header": header,
            "last": lines[-1],
            "record": record,
            "figures": figures(lines, record),
            "facts": facts(header, lines, record),
            "epochs": epoch_rows(record),
            "sessions": session_rows(record),
            "curves": list(enumerate(_curves(lines, record))),
            "width": int(curves.WIDTH),
            "height": int(curves.HEIGHT),
            "histogram": _histogram(samples, judged, lines[-1].scale_after),
            "layers": _layers(samples),
            "ranges": _ranges(samples, judged),
            "format": judged.value.upper(),
        },
    )


def _curves(lines: Sequence[StepLine], record: TrainingRecord | None) -> list[curves.Curve]:
    loss = [(line.step, line.loss) for line in lines]
    rate = [(line.step, line.learning_rate) for line in lines]
    norm = [(line.step, line.grad_norm) for line in lines]
    scale = [point for line in lines for point in ((line.step, line.scale_before), (line.step, line.scale_after))]
    positive = all(value is None or value > 0 for _, value in loss)
    drawn = [
        curves.curve("Loss", loss, curves.Scale.TEN if positive else curves.Scale.LINEAR),
        *(curves.curve(name, points, curves.Scale.LINEAR) for name, points in _metrics(record)),
        curves.curve("Learning rate", rate, curves.Scale.LINEAR),
        curves.curve("Loss scale", scale, curves.Scale.TWO, stepped=True) if _moves(scale) else None,
        curves.curve("Gradient norm", norm, curves.Scale.TEN),
    ]
    return [one for one in drawn if one is not None]


def _metrics(record: TrainingRecord | None) -> list[tuple[str, list[curves.Point]]]:
    """The held-out metrics over epochs, from three epochs on: two values make no curve."""
    history = record.history if record else ()
    if record is None or len(history) < 3:
        return []
    return [
        (
            f"{name[:1].upper()}{name[1:]}, by epoch",
            [(epoch, row.metrics.get(name)) for epoch, row in enumerate(history, 1)],
        )
        for name in record.metrics
    ]


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
        share = _share_in_words(100 * max(abs(low), abs(high)) / judged.max)
        rows.append(RangeRow(name, curves.short(low), curves.short(high), share, sum(item.nonfinite for item in items)))
    return rows


def _share_in_words(percent: float) -> str:
    if percent > 100:
        return "beyond it"
    if percent >= 0.01:
        return f"{percent:.2g} %"
    return "less than 0.01 %" if percent else "0"


def _histogram(samples: Sequence[Sample], judged: Format, scale: float) -> Histogram | None:
    if not samples or not any(any(sample.exponents) for sample in samples):
        return None
    lowest = samples[0].lowest
    total = [sum(column) for column in zip(*(sample.exponents for sample in samples), strict=True)]
    places = [place for place, share in enumerate(total) if share]
    about = judged.facts
    normal, zero = about.min_exponent, about.min_exponent - about.precision + 1
    shift = round(scale).bit_length() - 1 if scale >= 1 else 0
    known = {1: (zero, f"smallest number of {judged.value.upper()}"), 2: (normal, "smallest with all its bits")}
    if shift:
        known[3] = (zero - shift, "smallest number with the loss scale")
    # Wide enough for the gradients and for the format's limits, where these are near.
    near = [limit - lowest for limit, _ in known.values() if 0 <= limit - lowest < len(total)]
    left, right = min([*places, *near]), max([*places, *near]) + 1

    def at(exponent: int) -> float:
        return 100 * (exponent - lowest - left) / (right - left)

    step = max(1, (right - left) // 8)
    marks = tuple((at(e), curves.power(2, e)) for e in range(lowest + left, lowest + right + 1, step))
    limits = [Limit(tone, at(exponent), name) for tone, (exponent, name) in known.items()]
    return Histogram(
        curves.bars(total[left:right]),
        marks,
        tuple(limit for limit in limits if 0 <= limit.left <= 100),
        tuple(
            f"The {limit.name}, {curves.power(2, known[limit.tone][0])}, lies to the "
            f"{'left' if limit.left < 0 else 'right'} of the picture."
            for limit in limits
            if not 0 <= limit.left <= 100
        ),
    )
