"""Curves over training steps as inline SVG paths, drawn to stretch; their words stand in HTML."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

WIDTH, HEIGHT = 720.0, 160.0
_TICKS = 5
_BUCKETS = 360  # a curve of more points than twice this shows the least and the most of each stretch
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

Point = tuple[int, float | None]  # a step, and the value there, or None for a gap
Mark = tuple[float, str]  # how far along an axis, in percent, and what stands there


class Scale(Enum):
    """How an axis of values is spread: evenly, or by powers of ten or of two."""

    LINEAR = "linear"
    TEN = "powers of ten"
    TWO = "powers of two"


@dataclass(frozen=True)
class Curve:
    """One curve: its path, marks on both axes, and in words its least, its greatest and its last value."""

    name: str
    path: str
    levels: tuple[Mark, ...]
    ticks: tuple[Mark, ...]
    top: str
    bottom: str
    last: str
    points: int


def curve(name: str, points: Sequence[Point], scale: Scale, *, stepped: bool = False) -> Curve | None:
    """Return the curve through the points; None if there is nothing to draw.

    ``stepped`` keeps each value until the next point, for what only changes at once.
    """
    drawn = [(step, _scaled(value, scale)) for step, value in points]
    known = [value for _, value in drawn if value is not None]
    if not known:
        return None
    low, high = min(known), max(known)
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    commands: list[str] = []
    pen_down, before = False, 0.0
    for step, value in thinned(drawn):
        if value is None:
            pen_down = False
            continue
        x, y = WIDTH * (step - first) / (last - first), HEIGHT * _from_top(value, low, high) / 100
        if pen_down and stepped:
            commands.append(f"L {x:.1f} {before:.1f}")
        commands.append(f"{'L' if pen_down else 'M'} {x:.1f} {y:.1f}")
        pen_down, before = True, y
    if len(known) == 1:
        commands.append("h 4")  # a point alone would not be seen
    top, bottom, end = (short(_value(value, scale)) for value in (high, low, known[-1]))
    return Curve(name, " ".join(commands), _levels(low, high, scale), ticks(points), top, bottom, end, len(points))


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Return few enough points to draw: of each stretch of steps the least and the greatest value, in their order.

    A spike of one step stays to be seen; a stretch without any value stays a gap.
    """
    if len(points) <= 2 * _BUCKETS:
        return points
    kept: list[Point] = []
    for place in range(_BUCKETS):
        stretch = points[place * len(points) // _BUCKETS : (place + 1) * len(points) // _BUCKETS]
        known = [(value, number) for number, (_, value) in enumerate(stretch) if value is not None]
        if not known:
            kept.append(stretch[0])
            continue
        kept += [stretch[number] for number in sorted({min(known)[1], max(known)[1]})]
    return kept


def ticks(points: Sequence[Point]) -> tuple[Mark, ...]:
    """Return marks for the axis of steps."""
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    count = min(_TICKS, last - first + 1)
    steps = [first + round((last - first) * i / (count - 1)) for i in range(count)]
    return tuple((100 * (step - first) / (last - first), f"{step:,}") for step in steps)


def bars(shares: Sequence[float]) -> str:
    """Return the path of a histogram's bars, the highest as high as the picture."""
    top, step = max(shares, default=0.0) or 1.0, WIDTH / max(len(shares), 1)
    return " ".join(
        f"M {i * step + 0.5:.1f} {HEIGHT:.0f} V {HEIGHT * (1 - 0.94 * share / top):.1f} "
        f"h {step - 1:.1f} V {HEIGHT:.0f} Z"
        for i, share in enumerate(shares)
        if share
    )


def power(base: int, exponent: int) -> str:
    """Return a power as it is written by hand."""
    return f"{base}{str(exponent).translate(_RAISED)}"


def short(value: float) -> str:
    """Return a number in a few signs: 0.0031, 65,536, 2.5·10⁻⁵."""
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    factor = {"1": "", "-1": "-"}.get(mantissa, f"{mantissa}·")
    return factor + power(10, int(exponent))


def _levels(low: float, high: float, scale: Scale) -> tuple[Mark, ...]:
    """Round values for the axis, a handful, from the top down."""
    if high == low:
        return ((_from_top(low, low, high), short(_value(low, scale))),)
    bottom, top = _value(low, scale), _value(high, scale)
    if scale is Scale.TWO or (scale is Scale.TEN and high - low >= 2):
        stride = max(1, math.ceil((high - low) / _TICKS))
        first = math.ceil(low / stride) * stride
        base = 2 if scale is Scale.TWO else 10
        marks = [(float(e), _power_or_number(base, e)) for e in range(first, math.floor(high) + 1, stride)]
    else:
        values = _round_values(bottom, top) if scale is Scale.LINEAR or high - low < 0.6 else _one_two_five(bottom, top)
        marks = [(place, short(value)) for value in values if (place := _scaled(value, scale)) is not None]
    return tuple((_from_top(place, low, high), text) for place, text in reversed(marks))


def _power_or_number(base: int, exponent: int) -> str:
    return short(float(base**exponent)) if abs(exponent) <= 3 else power(base, exponent)


def _round_values(low: float, high: float) -> list[float]:
    rough = (high - low) / (_TICKS - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _one_two_five(low: float, high: float) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [float(f"{digit}e{decade}") for decade in decades for digit in (1, 2, 5)]
    return [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def _from_top(value: float, low: float, high: float) -> float:
    """Where a value lies, in percent from the top: with a little room above and below."""
    return 100 * (0.97 - 0.94 * (value - low) / ((high - low) or 1.0))


def _scaled(value: float | None, scale: Scale) -> float | None:
    if value is None or not math.isfinite(value) or (scale is not Scale.LINEAR and value <= 0):
        return None
    if scale is Scale.LINEAR:
        return value
    return math.log10(value) if scale is Scale.TEN else math.log2(value)


def _value(scaled: float, scale: Scale) -> float:
    return scaled if scale is Scale.LINEAR else (10.0 if scale is Scale.TEN else 2.0) ** scaled
