"""Quantiles of a stream of positive numbers in constant memory."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_LOW, _HIGH, _PER_DECADE = -12, 6, 64  # bins are 3.7 % wide


class LogHistogram:
    """Counts numbers in logarithmic bins from 1e-12 to 1e6; smaller ones and 0 go to the first, larger to the last."""

    def __init__(self) -> None:
        self._counts = np.zeros((_HIGH - _LOW) * _PER_DECADE, np.int64)

    def add(self, numbers: Array) -> None:
        """Count numbers that are at least 0; NaN counts as the largest."""
        with np.errstate(divide="ignore"):
            place = (np.log10(numbers) - _LOW) * _PER_DECADE
        top = len(self._counts) - 1
        bins = np.clip(np.nan_to_num(place, nan=top, posinf=top, neginf=0), 0, top).astype(np.int64)
        self._counts += np.bincount(bins, minlength=len(self._counts))

    def quantile(self, share: float) -> float:
        """Return the number that ``share`` of the numbers do not exceed, within 2 %; 0 below 1e-12 or if none came."""
        total = int(self._counts.sum())
        if not total:
            return 0.0
        index = int(np.searchsorted(np.cumsum(self._counts), share * total))
        return 0.0 if index == 0 else float(10.0 ** (_LOW + (index + 0.5) / _PER_DECADE))
