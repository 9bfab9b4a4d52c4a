"""What Python callers may write for the words of flags."""

from collections.abc import Iterable

from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import LOW_FORMATS, Format

Words = str | Iterable[str]
Precision = str | Format


def as_words(given: Words) -> tuple[str, ...]:
    """Return one word, or several, as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


def as_low_format(given: Precision) -> Format:
    """Return the low format of that name, in any case; raises ``UsageError`` for any other."""
    name = given.value if isinstance(given, Format) else str(given)
    for low in LOW_FORMATS:
        if low.value == name.lower():
            return low
    raise UsageError(f"unknown precision {name!r}", remedy=f"use {' or '.join(low.value for low in LOW_FORMATS)}")
