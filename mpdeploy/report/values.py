"""The values of an output, FP32 against candidate: how they are distributed, and pair by pair."""

from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 360.0, 240.0
_BINS = 32
_PAD = 8.0


@dataclass(frozen=True)
class Values:
    """Pairs of values as pictures: outlines of both histograms, points of the scatter plot, the ends of the axes."""

    output: str
    low: str
    high: str
    reference: str
    candidate: str
    points: str
    count: int
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
    top = max(max(_counts(side)) for side in sides)
    outlines = [_outline(_counts(side), top) for side in sides]
    points = "".join(_dot(share(r), share(c)) for r, c in pairs)
    return Values(output, f"{low:.3g}", f"{high:.3g}", outlines[0], outlines[1], points, len(pairs))


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
