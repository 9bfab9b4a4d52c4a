"""The drift of one output over any number of samples, measured as they stream by in constant memory."""

import math
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from mpdeploy.numerics import metrics
from mpdeploy.numerics.classes import ClassMeter
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.metrics import Array, Sums
from mpdeploy.numerics.retrieval import RetrievalMeter
from mpdeploy.numerics.samples import WORST_SHOWN, Quantiles, SampleError, SampleMeter
from mpdeploy.numerics.scatter import Scatter
from mpdeploy.numerics.significance import Accuracy
from mpdeploy.numerics.targets import TargetErrors, TargetMeter
from mpdeploy.numerics.ulps import worst_ulp

_COLLAPSED = 0.9  # a share of equal integers that a rare event may cost


@dataclass(frozen=True)
class OutputDrift:
    """How far one output of the candidate is from the reference's, over all samples.

    A metric that is not finite is None (see ``mpdeploy.numerics.metrics``).  ``exact`` marks an output of integers,
    booleans or strings, for which only ``match`` speaks: the share of equal elements.  ``worst_sample_error`` is
    the largest ||r - c|| of a sample over its ||r|| or the typical (root mean square) ||r||, whichever is larger.
    ``histogram`` counts the samples by that error in logarithmic bins from 1e-8 to 10 (see
    ``mpdeploy.numerics.samples``), ``quantiles`` are of the same errors; the first and last bin take what lies
    beyond.  ``max_abs_sample`` names the feed with the largest error of an element, ``worst_ulp`` is that of an
    element in units of the candidate's coarsest format.  ``constant``: the reference holds one number only;
    ``collapsed``: the candidate is constant where the reference is not (in an exact output, with more than a tenth
    wrong); ``frozen``: the same for every sample where the reference is not.  ``top1``, ``top5``, ``divergence``
    (nats) and ``accuracy`` read the output as class scores (see ``mpdeploy.numerics.ranking``), ``retrieval`` as
    embeddings: the share with the same nearest neighbour.  An output with true values has ``targets`` instead, the
    errors of both models.  ``scatter`` holds a few pairs (reference, candidate).  Shares run from 0 to 1.
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
    constant: bool = False
    collapsed: bool = False
    frozen: bool = False
    worst_ulp: float | None = None
    max_abs_sample: str = ""
    quantiles: Quantiles | None = None
    top1: float | None = None
    top5: float | None = None
    divergence: float | None = None
    retrieval: float | None = None
    accuracy: Accuracy | None = None
    targets: TargetErrors | None = None
    worst_samples: tuple[SampleError, ...] = ()
    histogram: tuple[int, ...] = ()
    scatter: tuple[tuple[float, float], ...] = ()
    shape_fault: str = ""

    @property
    def labelled(self) -> int:
        """How many samples had a label."""
        return self.accuracy.labelled if self.accuracy else 0

    @property
    def accuracy_reference(self) -> float | None:
        """The share of labelled samples that the reference gets right; None without labels."""
        return self.accuracy.reference if self.accuracy else None

    @property
    def accuracy_candidate(self) -> float | None:
        """The share of labelled samples that the candidate gets right; None without labels."""
        return self.accuracy.candidate if self.accuracy else None


class DriftMeter:
    """Takes pairs of an output's arrays and gives its ``OutputDrift``.

    ``target`` is the candidate's coarsest format: what its rounding alone may do to an output is no collapse.
    """

    def __init__(self, name: str, target: Format) -> None:
        self._name, self._target = name, target
        self._sums = Sums()
        self._exact = False
        self._count = self._elements = self._equal = 0
        self._ulp = 0.0
        self._max_abs_sample = ""
        self._samples, self._classes, self._retrieval = SampleMeter(), ClassMeter(), RetrievalMeter()
        self._targets = TargetMeter()
        self._scatter = Scatter()
        self._reference_values, self._candidate_values = _Variety(), _Variety()
        self._first: tuple[Array, Array] | None = None
        self._reference_change = self._candidate_change = 0.0
        self._shape_fault = ""

    def add(
        self,
        reference: Array,
        candidate: Array,
        rows: int,
        sample: str,
        labels: Array | None = None,
        first_row: int = 0,
        targets: Array | None = None,
    ) -> None:
        """Count one feed's output.

        ``rows`` is the feed's number of samples: if the arrays' first axis has that length, each row is a sample,
        named after ``sample`` and counted from ``first_row``; else the feed is one sample.  ``labels``, integers of
        shape (rows, ...), are the true classes of rows, or of tokens or pixels in them; ``targets``, of the arrays'
        shape, are the true values: what has them is read neither as classes nor as embeddings.
        """
        if reference.shape != candidate.shape:
            self._shape_fault = self._shape_fault or (
                f"{sample}: the candidate's shape is {list(candidate.shape)}, the reference's {list(reference.shape)}"
            )
            self._count += 1
            return
        by_row = reference.ndim > 0 and reference.shape[0] == rows and rows > 0
        if not by_row:
            reference, candidate, rows = reference[None], candidate[None], 1
            targets = targets[None] if targets is not None else None
        self._count += rows
        self._elements += reference.size
        self._equal += _equal(reference, candidate)
        if targets is not None and targets.size:
            self._targets.add(reference, candidate, targets)
        if not _is_float(reference):
            self._exact = True
            self._reference_values.add(reference)
            self._candidate_values.add(candidate)
            if labels is not None and by_row and reference.dtype.kind in "iu":
                self._classes.add_ids(reference, candidate, labels)
        elif reference.size:
            self._add_floats(reference, candidate, sample)
            numbered = by_row and (len(reference) > 1 or first_row > 0)
            self._samples.add(reference, candidate, sample, first_row if numbered else None)
            if by_row and targets is None:
                self._add_rows(reference, candidate, labels)

    def _add_floats(self, reference: Array, candidate: Array, sample: str) -> None:
        found = metrics.sums(reference, candidate)
        if found.error_max > self._sums.error_max or not self._max_abs_sample:
            self._max_abs_sample = sample
        self._sums += found
        self._ulp = max(self._ulp, worst_ulp(reference, candidate, self._target))
        self._scatter.add(reference, candidate)
        self._watch_change(reference, candidate)

    def _add_rows(self, reference: Array, candidate: Array, labels: Array | None) -> None:
        self._classes.add(reference, candidate, labels)
        if reference.ndim == 2 and reference.shape[1] > 1:
            self._retrieval.add(reference, candidate)

    def result(self) -> OutputDrift:
        """Return what was measured so far."""
        match = self._equal / self._elements if self._elements else 1.0
        counted = OutputDrift(
            name=self._name,
            exact=self._exact,
            samples=self._count,
            elements=self._elements,
            match=match,
            collapsed=self._reference_values.varies and not self._candidate_values.varies and match < _COLLAPSED,
            accuracy=self._classes.accuracy,
            targets=self._targets.result(),
            shape_fault=self._shape_fault,
        )
        return counted if self._exact or not self._elements else self._with_errors(counted)

    def _with_errors(self, counted: OutputDrift) -> OutputDrift:
        s, worst = self._sums, self._samples.worst()
        reference_moves = self._reference_change > 2 * self._target.unit_roundoff * s.largest
        return replace(
            counted,
            cosine=_finite(metrics.cosine(s)),
            norm_relative=_finite(metrics.norm_relative_error(s)),
            worst_sample_error=worst[0].error if worst and s.sound else None,
            sqnr_db=_finite(metrics.sqnr_db(s)),
            max_abs=_finite(metrics.max_abs_error(s)),
            mean_abs=_finite(metrics.mean_abs_error(s)),
            worst_ulp=self._ulp if s.sound else None,
            max_abs_sample=self._max_abs_sample,
            quantiles=self._samples.quantiles(),
            reference_largest=s.largest,
            reference_nan=s.reference_nan,
            reference_inf=s.reference_inf,
            candidate_nan=s.candidate_nan,
            candidate_inf=s.candidate_inf,
            broken=s.broken,
            moved=s.moved,
            constant=s.compared > 1 and s.reference_low == s.reference_high,
            collapsed=metrics.collapsed(s, self._target.unit_roundoff),
            frozen=self._count > 1 and s.compared > 0 and not self._candidate_change and reference_moves,
            top1=self._classes.top1,
            top5=self._classes.top5,
            divergence=self._classes.divergence,
            retrieval=self._retrieval.result(),
            worst_samples=tuple(worst[:WORST_SHOWN]),
            histogram=self._samples.histogram(),
            scatter=self._scatter.result(),
        )

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


class _Variety:
    """Whether there are two different values among the elements of arrays."""

    def __init__(self) -> None:
        self.varies = False
        self._first: object = None

    def add(self, array: Array) -> None:
        if array.size and not self.varies:
            self._first = array.reshape(-1)[0] if self._first is None else self._first
            self.varies = bool((array != self._first).any())


def _equal(reference: Array, candidate: Array) -> int:
    if _is_float(reference):
        same = (reference == candidate) | (np.isnan(reference) & np.isnan(candidate))
        return int(same.sum())
    return int((reference == candidate).sum())


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or bool(array.dtype == ml_dtypes.bfloat16)


def _largest(array: Array) -> float:
    """The largest magnitude; infinite if an element is not finite."""
    if not array.size:
        return 0.0
    top = float(np.abs(array).max())
    return top if math.isfinite(top) else math.inf


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
