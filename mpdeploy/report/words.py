"""Numbers as people read them."""

import math

NONE = "–"


def error(value: float | None) -> str:
    """Return an error with two or three significant digits: ``0.0123``, ``4.1e-5``, ``0``; a dash for none."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def cosine(value: float | None) -> str:
    """Return a cosine with as many digits as tell it from 1: ``0.9987``, ``0.99999982``, ``1``."""
    if value is None:
        return NONE
    gap = 1 - value
    if gap <= 1e-15:
        return "1"
    digits = max(4, min(12, 1 - math.floor(math.log10(gap)))) if gap > 0 else 4
    return f"{value:.{digits}f}"


def share(value: float | None) -> str:
    """Return a share of 1 as percent, never rounded up to 100: ``99.72 %``, ``100 %``."""
    if value is None:
        return NONE
    if value in (0, 1):
        return f"{value:.0%}".replace("%", " %")
    percent = 100 * value
    if 99.99 < percent < 100:
        percent = 99.99
    return f"{percent:.2f} %"


def decibels(value: float | None, decimals: int = 1) -> str:
    """Return a ratio in dB."""
    return NONE if value is None else f"{value:.{decimals}f} dB"


def size(count: float) -> str:
    """Return a number of bytes: ``312 B``, ``45.2 kB``, ``1.3 GB`` (powers of 1000)."""
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.2f} GB"


def count(number: int, what: str) -> str:
    """Return ``1 sample``, ``2 samples``, ``12 345 samples``."""
    return f"{number:,}".replace(",", " ") + f" {what}" + ("" if number == 1 else "s")
