"""Pictures as inline SVG: shapes only, drawn to stretch; their words stand in HTML, where they wrap and scale."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mpdeploy.numerics.samples import HISTOGRAM_BINS, HISTOGRAM_LOW, HISTOGRAM_PER_DECADE

_WIDTH, _HEIGHT = 720.0, 160.0
TONES = 4  # colours that the style sheet has for candidates


@dataclass(frozen=True)
class Tick:
    """A mark on the axis: how far along, in percent, and what it says."""

    left: float
    text: str


@dataclass(frozen=True)
class Curve:
    """One candidate's distribution: which colour, its outline and its area as SVG paths, its limit in percent."""

    tone: int
    name: str
    outline: str
    area: str
    limit: float | None


@dataclass(frozen=True)
class Distribution:
    """Distributions of the error per sample on one logarithmic axis; ``most`` samples reach the top."""

    curves: tuple[Curve, ...]
    ticks: tuple[Tick, ...]
    most: int
    width: float = _WIDTH
    height: float = _HEIGHT


def distribution(histograms: Sequence[tuple[str, Sequence[int], float | None]]) -> Distribution | None:
    """Return the picture of (name, counts per bin, limit or None); None if there is nothing to show.

    The axis spans the decades that hold samples or limits.  All curves have one scale.
    """
    filled = [i for _, counts, _ in histograms for i, n in enumerate(counts) if n]
    if not filled:
        return None
    limits = [_bin_of(limit) for _, _, limit in histograms if limit is not None and limit > 0]
    low = _floor_decade(min(filled))
    high = _ceil_decade(max([*filled, *limits]) + 1)
    low = max(0, min(low, high - 2 * HISTOGRAM_PER_DECADE))
    most = max(n for _, counts, _ in histograms for n in counts)
    curves = tuple(
        _curve(tone, name, counts[low:high], low, high, limit, most)
        for tone, (name, counts, limit) in enumerate(histograms)
    )
    ticks = tuple(
        Tick(100 * (i - low) / (high - low), power_of_ten(HISTOGRAM_LOW + i // HISTOGRAM_PER_DECADE))
        for i in range(low, high + 1, HISTOGRAM_PER_DECADE)
    )
    return Distribution(curves, ticks, most)


def _curve(tone: int, name: str, counts: Sequence[int], low: int, high: int, limit: float | None, most: int) -> Curve:
    runs = _steps(counts, _WIDTH / (high - low), most)
    at = None
    if limit is not None and limit > 0:
        at = min(100.0, max(0.0, 100 * (_bin_of(limit) - low) / (high - low)))
    return Curve(tone % TONES, name, " ".join(runs), " ".join(f"{run} Z" for run in runs), at)


def _steps(counts: Sequence[int], step: float, top: int) -> list[str]:
    """One outline for each run of filled bins, from the ground up and back to it."""
    runs: list[list[str]] = []
    for i, n in enumerate(counts):
        if not n:
            continue
        left, right, y = f"{i * step:.1f}", f"{(i + 1) * step:.1f}", _HEIGHT * (1 - 0.94 * n / top)
        if not i or not counts[i - 1]:
            runs.append([f"M {left} {_HEIGHT:.0f}"])
        runs[-1] += [f"L {left} {y:.1f} L {right} {y:.1f}"]
        if i + 1 == len(counts) or not counts[i + 1]:
            runs[-1].append(f"L {right} {_HEIGHT:.0f}")
    return [" ".join(run) for run in runs]


def _bin_of(value: float) -> float:
    return max(0.0, min(float(HISTOGRAM_BINS), (math.log10(value) - HISTOGRAM_LOW) * HISTOGRAM_PER_DECADE))


def _floor_decade(index: float) -> int:
    return int(index // HISTOGRAM_PER_DECADE) * HISTOGRAM_PER_DECADE


def _ceil_decade(index: float) -> int:
    return min(HISTOGRAM_BINS, -int(-index // HISTOGRAM_PER_DECADE) * HISTOGRAM_PER_DECADE)


def power_of_ten(exponent: int) -> str:
    """Return a power of ten as people write it: ``10⁻⁵``, ``1``, ``10``."""
    if exponent == 1:
        return "10"
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    return "1" if exponent == 0 else "10" + str(exponent).translate(digits)
