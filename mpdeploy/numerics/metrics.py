"""Drift metrics: how far a candidate's numbers are from its reference's.

Every metric is a pure function of ``Sums``, which hold all that a set of pairs of elements contributes.  Sums over
more pairs are the sum of their sums, so any number of samples is measured in constant memory.  All sums are
taken in float64.  A metric is NaN, and thus fails every limit, as soon as one element is broken: finite in
the reference, NaN or infinite in the candidate, or infinite in the reference and anything else in the candidate.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sums:
    """What pairs of elements add up to.  Squares, product and errors count pairs of finite elements only.

    ``broken`` counts finite reference elements whose partner is NaN or infinite; ``moved`` counts infinite or NaN
    reference elements whose partner is not the same.  ``largest`` is the largest finite reference magnitude.
    """

    elements: int = 0
    compared: int = 0
    reference_nan: int = 0
    reference_inf: int = 0
    candidate_nan: int = 0
    candidate_inf: int = 0
    broken: int = 0
    moved: int = 0
    reference_squares: float = 0.0
    candidate_squares: float = 0.0
    product: float = 0.0
    error_squares: float = 0.0
    error_sum: float = 0.0
    error_max: float = 0.0
    largest: float = 0.0
    reference_low: float = math.inf
    reference_high: float = -math.inf
    candidate_low: float = math.inf
    candidate_high: float = -math.inf

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.elements + other.elements,
            self.compared + other.compared,
            self.reference_nan + other.reference_nan,
            self.reference_inf + other.reference_inf,
            self.candidate_nan + other.candidate_nan,
            self.candidate_inf + other.candidate_inf,
            self.broken + other.broken,
            self.moved + other.moved,
            self.reference_squares + other.reference_squares,
            self.candidate_squares + other.candidate_squares,
            self.product + other.product,
            self.error_squares + other.error_squares,
            self.error_sum + other.error_sum,
            max(self.error_max, other.error_max),
            max(self.largest, other.largest),
            min(self.reference_low, other.reference_low),
            max(self.reference_high, other.reference_high),
            min(self.candidate_low, other.candidate_low),
            max(self.candidate_high, other.candidate_high),
        )

    @property
    def sound(self) -> bool:
        """Whether there is something to compare and nothing is broken."""
        return self.compared > 0 and not self.broken and not self.moved


def sums(reference: Array, candidate: Array) -> Sums:
    """Return the sums over all pairs of elements of two arrays of one shape, of any floating-point types."""
    if reference.shape != candidate.shape:
        raise ValueError(f"shapes differ: {reference.shape} and {candidate.shape}")
    r, c = reference.reshape(-1), candidate.reshape(-1)
    total = _block_sums(r[:_BLOCK], c[:_BLOCK])
    for start in range(_BLOCK, r.size, _BLOCK):
        total += _block_sums(r[start : start + _BLOCK], c[start : start + _BLOCK])
    return total


_BLOCK = 1 << 16  # elements that fit in the processor's cache in float64


def _block_sums(reference: Array, candidate: Array) -> Sums:
    r, c = _wide(reference), _wide(candidate)
    if np.isfinite(r).all() and np.isfinite(c).all():
        return _finite_sums(r, c, {"elements": r.size, "compared": r.size})
    r_finite, c_finite = np.isfinite(r), np.isfinite(c)
    both = r_finite & c_finite
    r_nan, c_nan = np.isnan(r), np.isnan(c)
    counts = {
        "elements": r.size,
        "compared": int(both.sum()),
        "reference_nan": int(r_nan.sum()),
        "reference_inf": int(r.size - r_finite.sum() - r_nan.sum()),
        "candidate_nan": int(c_nan.sum()),
        "candidate_inf": int(c.size - c_finite.sum() - c_nan.sum()),
        "broken": int((r_finite & ~c_finite).sum()),
        "moved": int((~r_finite & ~((r == c) | (r_nan & c_nan))).sum()),
    }
    return _finite_sums(r[both], c[both], counts)


def _finite_sums(r: Array, c: Array, counts: dict[str, int]) -> Sums:
    if not r.size:
        return Sums(**counts)
    error = np.abs(r - c)
    low, high = float(r.min()), float(r.max())
    return Sums(
        **counts,
        reference_squares=_dot(r, r),
        candidate_squares=_dot(c, c),
        product=_dot(r, c),
        error_squares=_dot(error, error),
        error_sum=float(error.sum()),
        error_max=float(error.max()),
        largest=max(abs(low), abs(high)),
        reference_low=low,
        reference_high=high,
        candidate_low=float(c.min()),
        candidate_high=float(c.max()),
    )


def _dot(a: Array, b: Array) -> float:
    """The product of two vectors, in this thread: waking others costs more than a block takes."""
    return float(np.einsum("i,i->", a, b))


def max_abs_error(s: Sums) -> float:
    """Return the largest |r - c|, in the output's own unit."""
    return s.error_max if s.sound else math.nan


def mean_abs_error(s: Sums) -> float:
    """Return the mean |r - c|, in the output's own unit."""
    return s.error_sum / s.compared if s.sound else math.nan


def norm_relative_error(s: Sums) -> float:
    """Return ||r - c|| / ||r|| (Euclidean): 0 is perfect; finite although single reference elements are 0.

    Infinite only if the whole reference is 0 and the candidate is not.
    """
    if not s.sound:
        return math.nan
    if s.error_squares == 0:
        return 0.0
    return math.sqrt(s.error_squares / s.reference_squares) if s.reference_squares else math.inf


def cosine(s: Sums) -> float:
    """Return r·c / (||r|| ||c||), from -1 to 1; 1 if both are all zero, 0 if only one of them is."""
    if not s.sound:
        return math.nan
    if not s.reference_squares or not s.candidate_squares:
        return 1.0 if s.reference_squares == s.candidate_squares else 0.0
    norms = math.sqrt(s.reference_squares) * math.sqrt(s.candidate_squares)
    return max(-1.0, min(1.0, s.product / norms))


def sqnr_db(s: Sums) -> float:
    """Return the signal to quantisation noise ratio 10 log10(||r||² / ||r - c||²) in dB; infinite if exact."""
    if not s.sound:
        return math.nan
    if s.error_squares == 0:
        return math.inf
    return 10 * math.log10(s.reference_squares / s.error_squares) if s.reference_squares else -math.inf


def collapsed(s: Sums, unit_roundoff: float) -> bool:
    """Return whether the candidate is constant (all zero, say) where the reference is not.

    Rounding the reference to a format of the given unit roundoff may itself leave one number: that is no collapse.
    """
    constant = s.compared > 1 and s.candidate_low == s.candidate_high
    return constant and s.error_max > unit_roundoff * s.largest


def sample_errors(reference: Array, candidate: Array) -> tuple[Array, Array]:
    """Return, for each of the rows of two (n, ...) arrays, ||r - c|| and ||r||; a broken row's error is infinite.

    Elements that are not finite in the reference and the same in the candidate are left out.
    """
    r = _wide(reference).reshape(len(reference), -1)
    c = _wide(candidate).reshape(len(candidate), -1)
    kept = np.isfinite(r)
    same = (r == c) | (np.isnan(r) & np.isnan(c))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(same, 0.0, np.where(kept & np.isfinite(c), r - c, np.inf))
        norms = np.sqrt(np.square(np.where(kept, r, 0.0)).sum(axis=1))
        return np.sqrt(np.square(error).sum(axis=1)), norms


def _wide(array: Array) -> Array:
    return np.asarray(array).astype(np.float64)
