"""The values of an output, FP32 against candidate: how they are distributed, and the error of each."""

from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 360.0, 240.0
_BINS = 32
_PAD = 8.0


@dataclass(frozen=True)
class Values:
    """Pairs of values as pictures: outlines of both histograms, and the error of each value over the value.

    ``most`` is the height of the histograms' axis in elements, ``error`` half of the height of the other's in the
    output's unit; ``low`` and ``high`` are the ends of the axes along which the values lie.
    """

    output: str
    low: str
    high: str
    reference: str
    candidate: str
    points: str
    count: int
    most: int
    error: str
    width: float = _WIDTH
    height: float = _HEIGHT


def value_pictures(output: str, pairs: Sequence[tuple[float, float]]) -> Values | None:
    """Return the pictures of pairs (reference, candidate); None if there are fewer than two different values."""
    numbers = [number for pair in pairs for number in pair]
    if len(pairs) < 2 or min(numbers) == max(numbers):
        return None
    low, high = min(numbers), max(numbers)

    def share(number: float) -> float:
        return (number - low) / (high - low)

    sides = [[share(pair[side]) for pair in pairs] for side in (0, 1)]
    most = max(max(_counts(side)) for side in sides)
    outlines = [_outline(_counts(side), most) for side in sides]
    errors = [candidate - reference for reference, candidate in pairs]
    largest = max(map(abs, errors)) or 1.0
    points = "".join(_dot(place, 0.5 + 0.5 * e / largest) for place, e in zip(sides[0], errors, strict=True))
    return Values(
        output,
        low=f"{low:.3g}",
        high=f"{high:.3g}",
        reference=outlines[0],
        candidate=outlines[1],
        points=points,
        count=len(pairs),
        most=most,
        error=f"{max(map(abs, errors)):.2g}",
    )


def _counts(shares: Sequence[float]) -> list[int]:
    counts = [0] * _BINS
    for share in shares:
        counts[min(_BINS - 1, int(share * _BINS))] += 1
    return counts


def _outline(counts: Sequence[int], top: int) -> str:
    step = _WIDTH / _BINS
    parts = [f"M0 {_HEIGHT:.0f}"]
    for i, n in enumerate(counts):
        y = _HEIGHT - (_HEIGHT - _PAD) * n / top
        parts.append(f"V{y:.1f}H{(i + 1) * step:.1f}")
    return "".join(parts) + f"V{_HEIGHT:.0f}"


def _dot(x: float, y: float) -> str:
    """A point as a path of no length, drawn with a round cap."""
    inner_x, inner_y = _WIDTH - 2 * _PAD, _HEIGHT - 2 * _PAD
    return f"M{_PAD + x * inner_x:.1f} {_HEIGHT - _PAD - y * inner_y:.1f}h0.01"
