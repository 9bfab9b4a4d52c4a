"""Drift metrics: their values, their behaviour at the edges, and that streaming changes nothing."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpdeploy.numerics import metrics, ranking
from mpdeploy.numerics.drift import DriftMeter
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.metrics import Sums, sums
from mpdeploy.numerics.samples import HISTOGRAM_BINS

FP16 = Format.FP16
ALL = (
    metrics.cosine,
    metrics.norm_relative_error,
    metrics.sqnr_db,
    metrics.max_abs_error,
    metrics.mean_abs_error,
)

numbers = st.floats(-1e6, 1e6, width=32, allow_subnormal=True)
pairs = hnp.arrays(np.float32, st.tuples(st.just(2), st.integers(1, 6), st.integers(1, 5)), elements=numbers)


def meter(reference, candidate, rows=1, labels=None, target=FP16):
    m = DriftMeter("y", target)
    m.add(np.asarray(reference), np.asarray(candidate), rows, "feed", labels)
    return m.result()


def test_values_by_hand():
    s = sums(np.float32([3, 4]), np.float32([3, 5]))
    assert metrics.max_abs_error(s) == 1
    assert metrics.mean_abs_error(s) == 0.5
    assert metrics.norm_relative_error(s) == pytest.approx(1 / 5)
    assert metrics.cosine(s) == pytest.approx((9 + 20) / (5 * math.sqrt(34)))
    assert metrics.sqnr_db(s) == pytest.approx(10 * math.log10(25))


@given(pairs)
def test_metrics_equal_their_textbook_forms(pair):
    r, c = pair.astype(np.float64)
    s = sums(*pair)
    if np.linalg.norm(r) > 0:
        assert metrics.norm_relative_error(s) == pytest.approx(np.linalg.norm(r - c) / np.linalg.norm(r))
    assert metrics.mean_abs_error(s) == pytest.approx(np.abs(r - c).mean())
    assert metrics.max_abs_error(s) == np.abs(r - c).max()
    assert -1 <= metrics.cosine(s) <= 1


@given(pairs)
def test_identical_arrays_are_perfect(pair):
    s = sums(pair[0], pair[0])
    assert metrics.cosine(s) == pytest.approx(1)
    assert metrics.norm_relative_error(s) == metrics.max_abs_error(s) == 0
    assert metrics.sqnr_db(s) == math.inf


@settings(deadline=None)
@given(pairs, st.integers(0, 6))
def test_streaming_equals_one_pass(pair, cut):
    r, c = pair
    whole, parts = DriftMeter("y", FP16), DriftMeter("y", FP16)
    whole.add(r, c, len(r), "s")
    for part in (slice(0, cut), slice(cut, None)):
        if len(r[part]):
            parts.add(r[part], c[part], len(r[part]), "s")
    a, b = whole.result(), parts.result()
    for field in ("cosine", "norm_relative", "mean_abs", "max_abs", "sqnr_db", "worst_sample_error"):
        assert getattr(a, field) == pytest.approx(getattr(b, field)), field
    for field in ("samples", "elements", "match", "collapsed", "frozen", "top1"):
        assert getattr(a, field) == getattr(b, field), field


def test_zeros_in_the_reference_leave_the_error_finite():
    s = sums(np.float32([0, 0, 1]), np.float32([1e-3, 0, 1]))
    assert metrics.norm_relative_error(s) == pytest.approx(1e-3)
    assert metrics.norm_relative_error(sums(np.zeros(3), np.zeros(3))) == 0
    assert metrics.norm_relative_error(sums(np.zeros(3), np.ones(3))) == math.inf
    assert metrics.cosine(sums(np.zeros(3), np.zeros(3))) == 1
    assert metrics.cosine(sums(np.zeros(3), np.ones(3))) == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("metric", ALL)
def test_one_broken_element_makes_every_metric_nan(bad, metric):
    assert math.isnan(metric(sums(np.ones(100), np.where(np.arange(100) == 7, bad, 1.0))))


@pytest.mark.parametrize("metric", ALL)
def test_nothing_to_compare_is_nan(metric):
    assert math.isnan(metric(Sums()))
    assert math.isnan(metric(sums(np.full(3, np.nan), np.full(3, np.nan))))


def test_an_infinity_that_stays_is_no_fault_and_one_that_moves_is():
    r = np.array([1, np.inf, -np.inf])
    assert sums(r, r).sound
    assert metrics.cosine(sums(r, r)) == 1
    assert not sums(r, -r).sound
    assert sums(r, np.array([1, 2, -np.inf])).moved == 1


def test_counts_of_nan_and_infinity():
    s = sums(np.array([1, np.nan, np.inf, 2]), np.array([np.nan, np.nan, np.inf, np.inf]))
    counts = s.reference_nan, s.reference_inf, s.candidate_nan, s.candidate_inf, s.broken, s.moved
    assert counts == (1, 1, 2, 2, 2, 0)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_any_float_type_is_measured_in_float64(dtype):
    s = sums(np.full(5000, 60000, np.float32), np.full(5000, 60000, np.float32).astype(dtype))
    assert math.isfinite(metrics.cosine(s))
    assert s.reference_squares == pytest.approx(5000 * 3.6e9)


# --- outputs that must never pass for good ------------------------------------------------------------------


def test_a_constant_candidate_is_collapsed_unless_rounding_explains_it():
    r = np.linspace(-1, 1, 8, dtype=np.float32)[None]
    assert meter(r, np.zeros_like(r)).collapsed
    assert meter(r, np.full_like(r, 0.3)).collapsed
    assert not meter(r, r).collapsed
    uniform = np.float32([[0.25, 0.25000003, 0.25, 0.24999997]])
    assert not meter(uniform, np.full_like(uniform, 0.25)).collapsed
    assert not meter(np.ones((1, 4)), np.ones((1, 4))).collapsed


def test_a_candidate_that_ignores_its_input_is_frozen():
    rng = np.random.default_rng(0)
    r = 1000 + rng.standard_normal((20, 8))
    frozen = np.broadcast_to(1000 + np.arange(8.0), r.shape)
    assert meter(r, frozen, rows=20).frozen
    assert not meter(r, r.astype(np.float32), rows=20).frozen
    assert not meter(frozen, frozen, rows=20).frozen


def test_a_single_bad_sample_is_found_by_name():
    r = np.random.default_rng(0).standard_normal((1000, 10))
    c = r.copy()
    c[637] += 1
    drift = meter(r, c, rows=1000)
    assert drift.worst_samples[0].sample == "feed row 637"
    assert drift.worst_sample_error > 0.5
    assert drift.norm_relative < 0.1
    assert sum(drift.histogram) == 1000
    assert len(drift.histogram) == HISTOGRAM_BINS


def test_a_small_sample_is_judged_by_the_typical_size():
    r = np.array([[1.0, 0], [1e-9, 0], [0, 1]])
    c = r + np.array([[0, 0], [1e-6, 0], [0, 0]])
    assert meter(r, c, rows=3).worst_sample_error < 1e-5


def test_different_shapes_are_a_fault_not_a_crash():
    drift = meter(np.zeros((96, 4)), np.zeros((97, 4)), rows=1)
    assert "[97, 4]" in drift.shape_fault


def test_empty_outputs_are_counted():
    drift = meter(np.zeros((0, 4)), np.zeros((0, 4)), rows=2)
    assert (drift.elements, drift.match) == (0, 1)


# --- classes ------------------------------------------------------------------------------------------------


def test_top1_accepts_ties_of_the_reference_and_refuses_nan():
    r = np.array([[1.0, 1, 0], [0, 2, 1], [0, 1, 2], [3, 0, 0]])
    c = np.array([[0.0, 1, 0], [0, 1, 2], [0, 1, 2], [np.nan, 0, 0]])
    assert ranking.top1_matches(r, c) == 2
    assert meter(r, c, rows=4).top1 == 0.5


def test_accuracy_on_labels_from_scores_and_from_class_ids():
    r = np.eye(4)
    c = np.eye(4)[[0, 1, 3, 2]]
    labels = np.array([0, 1, 2, 0])
    scores = meter(r, c, rows=4, labels=labels)
    assert (scores.labelled, scores.accuracy_reference, scores.accuracy_candidate) == (4, 0.75, 0.5)
    ids = meter(r.argmax(1), c.argmax(1), rows=4, labels=labels)
    assert (ids.accuracy_reference, ids.accuracy_candidate, ids.match) == (0.75, 0.5, 0.5)


def test_integers_strings_and_booleans_must_match_exactly():
    assert meter(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])).match == 0.75
    assert meter(np.array(["a", "b"]), np.array(["a", "c"])).match == 0.5
    assert meter(np.array([True]), np.array([True])).exact


def test_memory_stays_constant():
    m = DriftMeter("y", FP16)
    rng = np.random.default_rng(0)
    for i in range(300):
        r = rng.standard_normal((4, 3))
        m.add(r, r + 1e-3, 4, f"#{i}")
    assert m.result().samples == 1200
    held = sum(len(v) for v in vars(m).values() if isinstance(v, (list, dict, np.ndarray)))
    assert held < 100
