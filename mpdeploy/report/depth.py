"""The drift along the network as a picture: one value after the other, as they are computed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpdeploy.numerics.formats import Format
from mpdeploy.report.pictures import Tick, power_of_ten
from mpdeploy.verification.layers import Layer

WIDTH, HEIGHT = 720.0, 220.0
_LOWEST, _HIGHEST = -9, 1  # decades that can be shown
_TOP = 14.0  # room for the marks of what broke


@dataclass(frozen=True)
class Band:
    """A stretch of values in one format: where it starts and how wide it is, in the picture's units."""

    left: float
    width: float


@dataclass(frozen=True)
class Depth:
    """The line of the errors as an SVG path, marks where values broke, stretches in FP32, the axis of the errors."""

    line: str
    broken: tuple[float, ...]
    fp32: tuple[Band, ...]
    ticks: tuple[Tick, ...]
    summary: str
    width: float = WIDTH
    height: float = HEIGHT


def depth_picture(layers: Sequence[Layer]) -> Depth | None:
    """Return the picture of the values that can be measured; None if there are fewer than two."""
    shown = [layer for layer in layers if not layer.exact and not layer.narrowed and layer.node]
    if len(shown) < 2:
        return None
    errors = [layer.error for layer in shown if layer.error is not None and layer.error > 0]
    low = max(_LOWEST, math.floor(math.log10(min(errors)))) if errors else _LOWEST
    high = min(_HIGHEST, math.ceil(math.log10(max(errors)))) if errors else _HIGHEST
    high = max(high, low + 1)
    step = WIDTH / len(shown)

    def x(index: int) -> float:
        return (index + 0.5) * step

    broken = tuple(round(x(i), 1) for i, layer in enumerate(shown) if layer.error is None)
    ticks = tuple(
        Tick(100 * _y(10.0**decade, low, high) / HEIGHT, power_of_ten(decade)) for decade in range(low, high + 1)
    )
    return Depth(_line(shown, x, low, high), broken, tuple(_bands(shown, step)), ticks, _summary(shown, errors))


def _line(shown: Sequence[Layer], x: Callable[[int], float], low: int, high: int) -> str:
    parts = []
    pen_down = False
    for i, layer in enumerate(shown):
        if layer.error is None:
            pen_down = False
            continue
        parts.append(f"{'L' if pen_down else 'M'}{x(i):.1f} {_y(layer.error, low, high):.1f}")
        if not pen_down:
            parts.append("h0.01")  # a lone value shows as a dot
        pen_down = True
    return "".join(parts)


def _y(error: float, low: int, high: int) -> float:
    decades = math.log10(error) if error > 0 else low
    share = (min(max(decades, low), high) - low) / (high - low)
    return HEIGHT - share * (HEIGHT - _TOP)


def _bands(shown: Sequence[Layer], step: float) -> list[Band]:
    bands: list[Band] = []
    start: int | None = None
    for i, layer in enumerate([*shown, None]):
        is_fp32 = layer is not None and layer.format == Format.FP32.value
        if is_fp32 and start is None:
            start = i
        elif not is_fp32 and start is not None:
            bands.append(Band(round(start * step, 1), round((i - start) * step, 1)))
            start = None
    return bands


def _summary(shown: Sequence[Layer], errors: Sequence[float]) -> str:
    broken = sum(layer.error is None for layer in shown)
    span = f"errors from {min(errors):.1e} to {max(errors):.1e}" if errors else "no error"
    worst = max((layer for layer in shown if layer.error), key=lambda layer: layer.error or 0.0, default=None)
    at = f", the largest at {worst.node}" if worst is not None else ""
    return f"{len(shown)} values along the network: {span}{at}" + (f"; {broken} are NaN or infinite" if broken else "")
