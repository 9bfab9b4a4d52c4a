"""Errors of single samples: the worst by name, their distribution, in constant memory."""

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpdeploy.numerics.metrics import sample_errors
from mpdeploy.numerics.quantiles import LogHistogram

Array = np.ndarray[Any, Any]

WORST_KEPT = 16  # samples whose error is remembered by name
WORST_SHOWN = 5

HISTOGRAM_LOW, HISTOGRAM_HIGH, HISTOGRAM_PER_DECADE = -8, 1, 4
HISTOGRAM_BINS = (HISTOGRAM_HIGH - HISTOGRAM_LOW) * HISTOGRAM_PER_DECADE


@dataclass(frozen=True)
class SampleError:
    """One sample's norm-relative error; None if it is not finite.

    ``feed`` and ``row`` say where it is: the row along the first axis, None if the whole feed is the sample.
    """

    sample: str
    error: float | None
    feed: str = ""
    row: int | None = None


@dataclass(frozen=True)
class Quantiles:
    """The error that half, 90 % and 99 % of the samples do not exceed, within 2 %."""

    half: float
    ninety: float
    ninety_nine: float


class SampleMeter:
    """Takes outputs sample by sample.  An error is relative to the sample's norm or the typical one, if larger."""

    def __init__(self) -> None:
        self._samples = 0
        self._square_norms = 0.0
        self._worst: list[tuple[float, int, str, int | None, float, float]] = []
        self._histogram = np.zeros(HISTOGRAM_BINS, np.int64)
        self._fine = LogHistogram()

    def add(self, reference: Array, candidate: Array, sample: str, first_row: int | None) -> None:
        """Count the rows of two (n, ...) arrays; the samples' names number them from ``first_row``, unless None."""
        errors, norms = sample_errors(reference, candidate)
        before = self._samples
        self._samples += len(errors)
        self._square_norms += float(norms @ norms)
        relative = _relative(errors, np.maximum(norms, self._typical))
        self._histogram += _histogram(relative)
        self._fine.add(relative)
        for row in np.argsort(relative)[::-1][:WORST_KEPT]:
            number = None if first_row is None else first_row + int(row)
            key = float(relative[row]) if not math.isnan(relative[row]) else math.inf
            entry = (key, -before - int(row), sample, number, float(errors[row]), float(norms[row]))
            if len(self._worst) < WORST_KEPT:
                heapq.heappush(self._worst, entry)
            else:
                heapq.heappushpop(self._worst, entry)

    @property
    def _typical(self) -> float:
        """The root mean square of the samples' norms."""
        return math.sqrt(self._square_norms / self._samples) if self._samples else 0.0

    def worst(self) -> list[SampleError]:
        """Return the remembered samples, worst first, now against the norm that is typical of all samples."""
        scored = [
            (float(_relative(np.array([error]), np.array([max(norm, self._typical)]))[0]), -order, feed, row)
            for _, order, feed, row, error, norm in self._worst
        ]
        scored.sort(key=lambda item: (-item[0], item[1]))
        return [_sample_error(error, feed, row) for error, _, feed, row in scored]

    def histogram(self) -> tuple[int, ...]:
        """Return the counts in ``HISTOGRAM_BINS`` logarithmic bins from 1e-8 to 10."""
        return tuple(int(n) for n in self._histogram)

    def quantiles(self) -> Quantiles:
        """Return the quantiles of all errors so far."""
        return Quantiles(*(self._fine.quantile(share) for share in (0.5, 0.9, 0.99)))


def _sample_error(error: float, feed: str, row: int | None) -> SampleError:
    name = feed if row is None else f"{feed} row {row}"
    return SampleError(name, error if math.isfinite(error) else None, feed, row)


def _relative(errors: Array, norms: Array) -> Array:
    """errors / norms, 0 where there is no error, infinite where only the norm is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(errors == 0, 0.0, errors / norms)


def _histogram(relative: Array) -> Array:
    with np.errstate(divide="ignore"):
        place = (np.log10(relative) - HISTOGRAM_LOW) * HISTOGRAM_PER_DECADE
    bins = np.clip(np.nan_to_num(place, nan=HISTOGRAM_BINS, posinf=HISTOGRAM_BINS, neginf=0), 0, HISTOGRAM_BINS - 1)
    return np.bincount(bins.astype(np.int64), minlength=HISTOGRAM_BINS)
