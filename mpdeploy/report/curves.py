"""Curves over training steps as inline SVG paths, drawn to stretch; their words stand in HTML."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 720.0, 160.0
_TICKS = 5

Point = tuple[int, float | None]  # a step, and the value there, or None for a gap


@dataclass(frozen=True)
class Curve:
    """One curve: its path, and the words for the top and the bottom of its axis."""

    name: str
    path: str
    top: str
    bottom: str
    last: str


def curve(name: str, points: Sequence[Point], *, logarithmic: bool, stepped: bool = False) -> Curve | None:
    """Return the curve through the points; None if there is nothing to draw.

    ``stepped`` keeps each value until the next point, for what only changes at once.
    """
    drawn = [(step, _scaled(value, logarithmic)) for step, value in points]
    known = [(step, value) for step, value in drawn if value is not None]
    if not known:
        return None
    low, high = min(value for _, value in known), max(value for _, value in known)
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    span = (high - low) or 1.0
    commands: list[str] = []
    pen_down, before = False, 0.0
    for step, value in drawn:
        if value is None:
            pen_down = False
            continue
        x, y = WIDTH * (step - first) / (last - first), HEIGHT * (0.97 - 0.94 * (value - low) / span)
        if pen_down and stepped:
            commands.append(f"L {x:.1f} {before:.1f}")
        commands.append(f"{'L' if pen_down else 'M'} {x:.1f} {y:.1f}")
        pen_down, before = True, y
    words = [_word(value, logarithmic) for value in (high, low, known[-1][1])]
    return Curve(name, " ".join(commands), *words)


def ticks(points: Sequence[Point]) -> list[tuple[float, str]]:
    """Return marks for the axis of steps: how far along, in percent, and the step."""
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    return [(100 * i / (_TICKS - 1), f"{first + round((last - first) * i / (_TICKS - 1)):,}") for i in range(_TICKS)]


def bars(shares: Sequence[float]) -> str:
    """Return the path of a histogram's bars, the highest as high as the picture."""
    top, step = max(shares, default=0.0) or 1.0, WIDTH / max(len(shares), 1)
    return " ".join(
        f"M {i * step + 0.5:.1f} {HEIGHT:.0f} V {HEIGHT * (1 - 0.94 * share / top):.1f} "
        f"h {step - 1:.1f} V {HEIGHT:.0f} Z"
        for i, share in enumerate(shares)
        if share
    )


def _scaled(value: float | None, logarithmic: bool) -> float | None:
    if value is None or not math.isfinite(value) or (logarithmic and value <= 0):
        return None
    return math.log10(value) if logarithmic else value


def _word(value: float, logarithmic: bool) -> str:
    return f"{10**value if logarithmic else value:.4g}"
