"""How far two models are from the true values: errors of regression and of images, as they stream by."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_Z95 = 1.959963984540054  # the 97.5 % point of the normal distribution
_IMAGE = 4  # dimensions from which an array is a batch of images: (n, channels, height, width)


@dataclass(frozen=True)
class TargetErrors:
    """The errors of reference and candidate against the true values of the same ``samples``.

    ``*_mae`` is the mean absolute error and ``*_rmse`` the root of the mean squared one, in the output's own unit.
    ``change`` is the candidate's mean absolute error less the reference's, a mean over samples, and ``interval`` its
    95 % interval (normal, paired; None with a single sample).  For images ``*_psnr`` is the mean over images of
    10 log10(peak² / mean squared error), in dB, with ``peak`` 1 or 255 by the targets' range, else the width of that
    range.  A number that is not finite is None.
    """

    samples: int
    reference_mae: float | None
    candidate_mae: float | None
    reference_rmse: float | None
    candidate_rmse: float | None
    change: float | None
    interval: tuple[float, float] | None = None
    peak: float | None = None
    reference_psnr: float | None = None
    candidate_psnr: float | None = None


class TargetMeter:
    """Takes an output of both models with its true values, and gives ``TargetErrors``.

    A target that is NaN is unknown, and does not count; a NaN in a model's output spoils its error.
    """

    def __init__(self) -> None:
        self._samples = 0
        self._images = True
        self._low, self._high = math.inf, -math.inf
        self._reference, self._candidate = _Errors(), _Errors()
        self._change = self._change_squares = 0.0

    def add(self, reference: Array, candidate: Array, targets: Array) -> None:
        """Count arrays of one shape (n, ...), of any numeric types."""
        rows = len(targets)
        truth = targets.astype(np.float64).reshape(rows, -1)
        known = ~np.isnan(truth)
        counted = known.any(axis=1)
        if not counted.any():
            return
        truth, known = truth[counted], known[counted]
        self._images = self._images and targets.ndim >= _IMAGE
        self._samples += len(truth)
        self._low, self._high = min(self._low, float(truth[known].min())), max(self._high, float(truth[known].max()))
        means = [
            meter.add(array.astype(np.float64).reshape(rows, -1)[counted], truth, known)
            for meter, array in ((self._reference, reference), (self._candidate, candidate))
        ]
        with np.errstate(invalid="ignore"):
            changes = means[1] - means[0]
            self._change += float(changes.sum())
            self._change_squares += float(np.square(changes).sum())

    def result(self) -> TargetErrors | None:
        """Return the errors so far; None if there was no target."""
        n = self._samples
        if not n:
            return None
        change = self._change / n
        spread = math.nan
        if n > 1 and math.isfinite(self._change_squares):
            spread = _Z95 * math.sqrt(max(0.0, self._change_squares - n * change * change) / (n - 1) / n)
        peak = _peak(self._low, self._high) if self._images else None
        return TargetErrors(
            samples=n,
            reference_mae=_finite(self._reference.absolute),
            candidate_mae=_finite(self._candidate.absolute),
            reference_rmse=_finite(self._reference.squared, math.sqrt),
            candidate_rmse=_finite(self._candidate.squared, math.sqrt),
            change=_finite(change),
            interval=(change - spread, change + spread) if math.isfinite(spread) else None,
            peak=peak,
            reference_psnr=None if peak is None else self._reference.psnr(peak),
            candidate_psnr=None if peak is None else self._candidate.psnr(peak),
        )


class _Errors:
    """One model's errors: sums over elements, and the logarithms of the samples' mean squares."""

    def __init__(self) -> None:
        self._elements = self._samples = 0
        self._absolute = self._squares = self._logarithms = 0.0

    def add(self, values: Array, truth: Array, known: Array) -> Array:
        """Count (n, elements) values; return the mean absolute error of each sample."""
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            error = np.where(known, np.abs(values - truth), 0.0)
            counts = known.sum(axis=1)
            squares = np.square(error).sum(axis=1) / counts
            self._elements += int(counts.sum())
            self._samples += len(values)
            self._absolute += float(error.sum())
            self._squares += float(np.square(error).sum())
            self._logarithms += float(np.log10(squares).sum())
            means: Array = error.sum(axis=1) / counts
        return means

    @property
    def absolute(self) -> float:
        return self._absolute / self._elements

    @property
    def squared(self) -> float:
        return self._squares / self._elements

    def psnr(self, peak: float) -> float | None:
        """The mean of the samples' ratios in dB; None if one of them is infinite (no error at all) or NaN."""
        return _finite(20 * math.log10(peak) - 10 * self._logarithms / self._samples)


def _peak(low: float, high: float) -> float | None:
    if low >= 0 and high <= 1:
        return 1.0
    if low >= 0 and high <= 255:
        return 255.0
    width = high - low
    return width if width > 0 and math.isfinite(width) else None


def _finite(value: float, function: Any = float) -> float | None:
    return function(value) if math.isfinite(value) else None
