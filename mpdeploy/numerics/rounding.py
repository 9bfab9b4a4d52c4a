"""Exact casts between number formats, with an account of what was lost."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpdeploy.numerics.formats import Format

# Squares of magnitudes outside this band leave float32; such chunks are measured in float64.
_SQUARE_SAFE = (1e-15, 1e15)
# What numpy rounds float64 to in one step; to all others it goes by way of float32 and would round twice.
_DIRECT = (Format.FP32, Format.FP16)


def cast(array: NDArray[Any], target: Format) -> NDArray[Any]:
    """Return ``array`` (float32 or float64) in ``target``, rounded to nearest even; magnitudes too large become inf.

    TF32 comes back as float32 whose lower 13 bits are zero.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if array.dtype == np.float64 and target not in _DIRECT:
            array = _to_odd(array)
        return _to_tf32(array.astype(np.float32)) if target is Format.TF32 else array.astype(target.dtype)


def rounded(array: NDArray[Any], target: Format) -> NDArray[np.float32]:
    """Return ``array`` as float32 after it went through ``target``: what an operator in that format would read."""
    return cast(array, target).astype(np.float32)


def _to_tf32(array: NDArray[np.float32]) -> NDArray[np.float32]:
    drop = Format.FP32.facts.precision - Format.TF32.facts.precision
    bits = array.view(np.uint32)
    half = np.uint32((1 << (drop - 1)) - 1)
    odd = (bits >> np.uint32(drop)) & np.uint32(1)
    kept = (bits + half + odd) & ~np.uint32((1 << drop) - 1)
    return np.where(np.isfinite(array), kept.view(np.float32), array)


def _to_odd(array: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round towards zero and set the last bit if anything was lost: rounding on from here errs nowhere."""
    near = array.astype(np.float32)
    bits = near.view(np.uint32)
    away = np.abs(near.astype(np.float64)) > np.abs(array)
    lost = (near != array) & ~np.isnan(array)
    return np.where(lost, (bits - away) | np.uint32(1), bits).astype(np.uint32).view(np.float32)


@dataclass(frozen=True)
class Loss:
    """What a tensor lost when it was rounded to ``target``.

    Counts are numbers of elements.  ``overflowed``: finite, became infinite.  ``vanished``: not zero, became zero
    (a negative one loses its sign).  ``subnormal``: kept with fewer bits.  ``norm_error`` is the Euclidean norm of
    the error over that of the tensor (0 for an all-zero one), overflowed elements left out.  ``worst_relative`` is
    the largest relative error of an element that did not overflow; a vanished one counts 1.  Both are upper bounds
    if ``bound`` is set: elements of the normal range are then taken to err by the unit roundoff.
    """

    target: Format
    size: int
    absmax: float
    smallest: float
    overflowed: int = 0
    vanished: int = 0
    negative_vanished: int = 0
    subnormal: int = 0
    norm_error: float = 0.0
    worst_relative: float = 0.0
    bound: bool = False

    @property
    def is_exceptional(self) -> bool:
        """Tell whether an element lost more than the format's ordinary rounding error."""
        return bool(self.overflowed or self.vanished or self.subnormal)

    @property
    def matters(self) -> bool:
        """Tell whether the tensor as a whole lost more than rounding takes of any number of the normal range."""
        return self.overflowed > 0 or self.norm_error > self.target.unit_roundoff


class LossMeter:
    """Adds up the loss of a tensor that comes in chunks.

    ``exact`` casts every element there and back; without it only those below the normal range, which is many times
    faster and gives the errors as bounds (see ``Loss``).
    """

    def __init__(self, target: Format, *, exact: bool = True) -> None:
        self.target, self.exact = target, exact
        self._size = self._overflowed = self._vanished = self._negative = self._subnormal = 0
        self._absmax, self._smallest = 0.0, math.inf
        self._error = self._power = self._worst = 0.0

    def add(self, chunk: NDArray[Any]) -> None:
        """Count the elements of a float32 or float64 chunk.  NaN and infinities lose nothing."""
        flat = chunk.ravel()
        magnitude = np.abs(flat)
        self._size += flat.size
        if not flat.size:
            return
        top = float(magnitude.max())
        if not math.isfinite(top):
            keep = np.isfinite(magnitude)
            flat, magnitude = flat[keep], magnitude[keep]
            top = float(magnitude.max(initial=0.0))
        self._absmax = max(self._absmax, top)
        if top == 0.0:
            return
        threshold = self.target.overflow_threshold
        if top >= threshold:
            keep = magnitude < threshold if self.target.threshold_overflows else magnitude <= threshold
            self._overflowed += int(flat.size - np.count_nonzero(keep))
            flat, magnitude = flat[keep], magnitude[keep]
        if self.exact:
            self._add_exactly(flat, magnitude)
        else:
            self._add_bound(flat, magnitude)

    def _add_bound(self, flat: NDArray[Any], magnitude: NDArray[Any]) -> None:
        small = magnitude < self.target.smallest_normal
        few = np.count_nonzero(small)
        if few:
            self._add_exactly(flat[small], magnitude[small])
        if few == flat.size:
            return
        low, high = _SQUARE_SAFE
        safe = low < magnitude.max() < high
        power = float(np.dot(magnitude, magnitude)) if safe else float(np.square(magnitude, dtype=np.float64).sum())
        if few:
            power = max(0.0, power - float(np.square(magnitude[small], dtype=np.float64).sum()))
            if not magnitude[small].any():  # they were zeros, so the smallest is elsewhere
                self._smallest = min(self._smallest, float(magnitude[~small].min()))
        else:
            self._smallest = min(self._smallest, float(magnitude.min()))
        self._power += power
        self._error += power * self.target.unit_roundoff**2
        self._worst = max(self._worst, self.target.unit_roundoff)

    def _add_exactly(self, flat: NDArray[Any], magnitude: NDArray[Any]) -> None:
        back = cast(flat, self.target).astype(flat.dtype)
        small = magnitude < self.target.smallest_normal
        if small.any():
            tiny, tiny_back = flat[small], back[small]
            gone = (tiny != 0) & (tiny_back == 0)
            vanished = int(np.count_nonzero(gone))
            self._vanished += vanished
            self._negative += int(np.count_nonzero(gone & (tiny < 0)))
            self._subnormal += int(np.count_nonzero(tiny)) - vanished
        divisor = np.where(magnitude > 0, magnitude, np.inf)
        self._smallest = min(self._smallest, float(divisor.min(initial=math.inf)))
        error = np.subtract(flat, back)
        self._worst = max(self._worst, float((np.abs(error) / divisor).max(initial=0.0)))
        low, high = _SQUARE_SAFE
        if not low < magnitude.max(initial=0.0) < high:
            error, magnitude = error.astype(np.float64), magnitude.astype(np.float64)
        self._error += float(np.dot(error, error))
        self._power += float(np.dot(magnitude, magnitude))

    def result(self) -> Loss:
        """Return the account of all chunks so far."""
        return Loss(
            target=self.target,
            size=self._size,
            absmax=self._absmax,
            smallest=self._smallest if math.isfinite(self._smallest) else 0.0,
            overflowed=self._overflowed,
            vanished=self._vanished,
            negative_vanished=self._negative,
            subnormal=self._subnormal,
            norm_error=math.sqrt(self._error / self._power) if self._power > 0 else 0.0,
            worst_relative=self._worst,
            bound=not self.exact,
        )


def loss_of(array: NDArray[Any], target: Format) -> Loss:
    """Return what ``array`` (float32 or float64) would lose in ``target``."""
    meter = LossMeter(target)
    meter.add(np.asarray(array))
    return meter.result()
