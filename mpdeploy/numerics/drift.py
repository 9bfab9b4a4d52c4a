"""The drift of one output over any number of samples, measured as they stream by in constant memory."""

import heapq
import math
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from mpdeploy.numerics import metrics
from mpdeploy.numerics.metrics import Array, Sums

WORST_KEPT = 16  # samples whose error is remembered by name
WORST_SHOWN = 5

HISTOGRAM_LOW, HISTOGRAM_HIGH, HISTOGRAM_PER_DECADE = -8, 1, 4
HISTOGRAM_BINS = (HISTOGRAM_HIGH - HISTOGRAM_LOW) * HISTOGRAM_PER_DECADE


@dataclass(frozen=True)
class SampleError:
    """One sample's norm-relative error; None if it is not finite."""

    sample: str
    error: float | None


@dataclass(frozen=True)
class OutputDrift:
    """How far one output of the candidate is from the reference's, over all samples.

    A metric that is not finite is None (see ``mpdeploy.numerics.metrics``).  ``exact`` marks an output of integers,
    booleans or strings, for which only ``match`` speaks: the share of equal elements.  ``worst_sample_error`` is
    the largest ||r - c|| of a sample over its ||r|| or the typical (root mean square) ||r||, whichever is larger.
    ``histogram`` counts the samples by that error in ``HISTOGRAM_BINS`` logarithmic bins from 1e-8 to 10; its
    first and last bin take what lies beyond.  ``collapsed``: constant where the reference is not; ``frozen``:
    the same for every sample where the reference is not.  Shares run from 0 to 1.
    """

    name: str
    exact: bool
    samples: int
    elements: int
    match: float
    cosine: float | None = None
    norm_relative: float | None = None
    worst_sample_error: float | None = None
    sqnr_db: float | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    reference_largest: float | None = None
    reference_nan: int = 0
    reference_inf: int = 0
    candidate_nan: int = 0
    candidate_inf: int = 0
    broken: int = 0
    moved: int = 0
    collapsed: bool = False
    frozen: bool = False
    top1: float | None = None
    labelled: int = 0
    accuracy_reference: float | None = None
    accuracy_candidate: float | None = None
    worst_samples: tuple[SampleError, ...] = ()
    histogram: tuple[int, ...] = ()
    shape_fault: str = ""


class DriftMeter:
    """Takes pairs of an output's arrays and gives its ``OutputDrift``.

    ``unit_roundoff`` is that of the candidate's coarsest format: what rounding alone may do to an output.
    """

    def __init__(self, name: str, unit_roundoff: float) -> None:
        self._name, self._roundoff = name, unit_roundoff
        self._sums = Sums()
        self._exact = False
        self._samples = self._elements = self._equal = 0
        self._ranked = self._top1 = 0
        self._labelled = self._correct_reference = self._correct_candidate = 0
        self._square_norms = 0.0
        self._worst: list[tuple[float, int, str, float, float]] = []
        self._histogram = np.zeros(HISTOGRAM_BINS, np.int64)
        self._first: tuple[Array, Array] | None = None
        self._reference_change = self._candidate_change = 0.0
        self._shape_fault = ""

    def add(self, reference: Array, candidate: Array, rows: int, sample: str, labels: Array | None = None) -> None:
        """Count one feed's output.

        ``rows`` is the feed's number of samples: if the arrays' first axis has that length, each row is a sample,
        named after ``sample``; else the feed is one sample.  ``labels``, (rows,) integers, are the true classes.
        """
        if reference.shape != candidate.shape:
            self._shape_fault = self._shape_fault or (
                f"{sample}: the candidate's shape is {list(candidate.shape)}, the reference's {list(reference.shape)}"
            )
            self._samples += 1
            return
        by_row = reference.ndim > 0 and reference.shape[0] == rows and rows > 0
        if not by_row:
            reference, candidate, rows = reference[None], candidate[None], 1
        self._samples += rows
        self._elements += reference.size
        self._equal += _equal(reference, candidate)
        if labels is not None and len(labels) == rows:
            self._count_correct(reference, candidate, labels)
        if not _is_float(reference):
            self._exact = True
            return
        if not reference.size:
            return
        self._sums += metrics.sums(reference, candidate)
        if reference.ndim == 2 and reference.shape[1] > 1 and by_row:
            self._ranked += rows
            self._top1 += metrics.top1_matches(reference, candidate)
        self._rank_samples(reference, candidate, sample, by_row and rows > 1)
        self._watch_change(reference, candidate)

    def result(self) -> OutputDrift:
        """Return what was measured so far."""
        counted = OutputDrift(
            name=self._name,
            exact=self._exact,
            samples=self._samples,
            elements=self._elements,
            match=self._equal / self._elements if self._elements else 1.0,
            labelled=self._labelled,
            accuracy_reference=self._correct_reference / self._labelled if self._labelled else None,
            accuracy_candidate=self._correct_candidate / self._labelled if self._labelled else None,
            shape_fault=self._shape_fault,
        )
        return counted if self._exact else self._with_errors(counted)

    def _with_errors(self, counted: OutputDrift) -> OutputDrift:
        s, worst = self._sums, self._worst_samples()
        reference_moves = self._reference_change > 2 * self._roundoff * s.largest
        return replace(
            counted,
            cosine=_finite(metrics.cosine(s)),
            norm_relative=_finite(metrics.norm_relative_error(s)),
            worst_sample_error=worst[0].error if worst and s.sound else None,
            sqnr_db=_finite(metrics.sqnr_db(s)),
            max_abs=_finite(metrics.max_abs_error(s)),
            mean_abs=_finite(metrics.mean_abs_error(s)),
            reference_largest=s.largest,
            reference_nan=s.reference_nan,
            reference_inf=s.reference_inf,
            candidate_nan=s.candidate_nan,
            candidate_inf=s.candidate_inf,
            broken=s.broken,
            moved=s.moved,
            collapsed=metrics.collapsed(s, self._roundoff),
            frozen=self._samples > 1 and s.compared > 0 and not self._candidate_change and reference_moves,
            top1=self._top1 / self._ranked if self._ranked else None,
            worst_samples=tuple(worst[:WORST_SHOWN]),
            histogram=tuple(int(n) for n in self._histogram),
        )

    def _count_correct(self, reference: Array, candidate: Array, labels: Array) -> None:
        if reference.ndim == 2 and reference.shape[1] > 1 and _is_float(reference):
            right = metrics.correct(reference, labels), metrics.correct(candidate, labels)
        elif reference.size == labels.size and reference.dtype.kind in "iu":
            right = tuple(int((a.reshape(-1) == labels).sum()) for a in (reference, candidate))  # type: ignore[assignment]
        else:
            return
        self._labelled += len(labels)
        self._correct_reference += right[0]
        self._correct_candidate += right[1]

    def _rank_samples(self, reference: Array, candidate: Array, sample: str, by_row: bool) -> None:
        errors, norms = metrics.sample_errors(reference, candidate)
        self._square_norms += float(norms @ norms)
        typical = math.sqrt(self._square_norms / self._samples)
        relative = _relative(errors, np.maximum(norms, typical))
        self._histogram += _histogram(relative)
        for row in np.argsort(relative)[::-1][:WORST_KEPT]:
            name = f"{sample} row {row}" if by_row else sample
            key = float(relative[row]) if not math.isnan(relative[row]) else math.inf
            entry = (key, -self._samples - int(row), name, float(errors[row]), float(norms[row]))
            if len(self._worst) < WORST_KEPT:
                heapq.heappush(self._worst, entry)
            else:
                heapq.heappushpop(self._worst, entry)

    def _worst_samples(self) -> list[SampleError]:
        """The remembered samples, worst first, now against the norm that is typical of all samples."""
        typical = math.sqrt(self._square_norms / self._samples) if self._samples else 0.0
        scored = [
            (float(_relative(np.array([error]), np.array([max(norm, typical)]))[0]), -order, name)
            for _, order, name, error, norm in self._worst
        ]
        scored.sort(key=lambda item: (-item[0], item[1]))
        return [SampleError(name, _finite(error)) for error, _, name in scored]

    def _watch_change(self, reference: Array, candidate: Array) -> None:
        r, c = reference.astype(np.float64), candidate.astype(np.float64)
        if self._first is None:
            self._first = r[0].copy(), c[0].copy()
        first_r, first_c = self._first
        if r.shape[1:] != first_r.shape:
            self._candidate_change = math.inf  # samples of another shape are another output already
            return
        with np.errstate(invalid="ignore"):
            self._reference_change = max(self._reference_change, _largest(r - first_r))
            self._candidate_change = max(self._candidate_change, _largest(c - first_c))


def _equal(reference: Array, candidate: Array) -> int:
    if _is_float(reference):
        same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
        return int(same.sum())
    return int((reference == candidate).sum())


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or bool(array.dtype == ml_dtypes.bfloat16)


def _relative(errors: Array, norms: Array) -> Array:
    """errors / norms, 0 where there is no error, infinite where only the norm is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(errors == 0, 0.0, errors / norms)


def _histogram(relative: Array) -> Array:
    with np.errstate(divide="ignore"):
        place = (np.log10(relative) - HISTOGRAM_LOW) * HISTOGRAM_PER_DECADE
    bins = np.clip(np.nan_to_num(place, nan=HISTOGRAM_BINS, posinf=HISTOGRAM_BINS, neginf=0), 0, HISTOGRAM_BINS - 1)
    return np.bincount(bins.astype(np.int64), minlength=HISTOGRAM_BINS)


def _largest(array: Array) -> float:
    """The largest magnitude; infinite if an element is not finite."""
    if not array.size:
        return 0.0
    top = float(np.abs(array).max())
    return top if math.isfinite(top) else math.inf


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
