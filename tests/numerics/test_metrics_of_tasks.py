"""Metrics by task: their values by hand, and their behaviour at the edges."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpdeploy.numerics import ranking
from mpdeploy.numerics.boxes import Detections, iou, match
from mpdeploy.numerics.classes import ClassMeter
from mpdeploy.numerics.drift import DriftMeter
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.quantiles import LogHistogram
from mpdeploy.numerics.retrieval import KEPT, RetrievalMeter
from mpdeploy.numerics.scatter import PAIRS, Scatter
from mpdeploy.numerics.significance import mcnemar, wilson
from mpdeploy.numerics.ulps import worst_ulp

# --- classes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "rows"), [((6, 4), 6), ((2, 3, 4), 6), ((2, 4, 3, 5), 30), ((2, 4, 3, 5, 2), 60)])
def test_classes_lie_along_the_last_axis_or_along_axis_1(shape, rows):
    scores = np.random.default_rng(0).standard_normal(shape)
    flat = ranking.class_rows(scores)
    assert flat.shape == (rows, 4)
    labels = scores.argmax(axis=-1 if len(shape) < 4 else 1)
    assert ranking.correct(flat, ranking.class_labels(labels, scores)).all()
    assert ranking.class_labels(labels.reshape(-1)[:-1], scores) is None


def test_what_is_no_class_score():
    assert ranking.class_rows(np.zeros(3)) is None
    assert ranking.class_rows(np.zeros((3, 1))) is None
    assert ranking.class_rows(np.zeros((0, 4))) is None


def test_top5_counts_the_references_best_among_the_candidates_five():
    r = np.eye(7)[:2]
    c = np.array([[4.0, 9, 8, 7, 6, 0, 0], [9, 3, 8, 7, 6, 5, 4]])  # fifth, and last
    assert ranking.topk_matches(r, c, 5) == 1
    assert ranking.topk_matches(r, np.where(c == 4, np.nan, c), 5) == 0
    assert ranking.topk_matches(r, np.zeros_like(c), 5) == 2  # all tie


def test_divergence_of_logits_and_of_probabilities():
    p, q = np.array([[0.5, 0.25, 0.25]]), np.array([[0.25, 0.5, 0.25]])
    want = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    assert ranking.divergences(p, q) == pytest.approx([want])
    assert ranking.divergences(np.log(p) + 7, np.log(q) - 3) == pytest.approx([want])
    certain, wrong = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert ranking.divergences(certain, certain) == pytest.approx([0])
    assert np.isinf(ranking.divergences(certain, wrong)).all()


@given(hnp.arrays(np.float32, (3, 5), elements=st.floats(-50, 50, width=32)))
def test_divergence_is_never_negative_and_zero_for_the_same(rows):
    assert ranking.divergences(rows.astype(np.float64), rows.astype(np.float64)) == pytest.approx([0] * 3, abs=1e-9)
    assert (ranking.divergences(rows.astype(np.float64), np.roll(rows, 1, axis=1).astype(np.float64)) >= 0).all()


def test_tokens_with_labels_and_ignored_ones():
    r = np.eye(4)[np.array([[0, 1, 2], [3, 0, 1]])]
    c = np.eye(4)[np.array([[0, 1, 3], [3, 0, 0]])]
    m = DriftMeter("logits", Format.FP16)
    m.add(r, c, 2, "feed", np.array([[0, 1, 2], [3, -100, 0]]))
    drift = m.result()
    assert drift.top1 == pytest.approx(4 / 6)
    assert (drift.labelled, drift.accuracy.lost, drift.accuracy.gained) == (5, 1, 1)
    assert drift.accuracy_reference == drift.accuracy_candidate == pytest.approx(4 / 5)


def test_a_class_meter_without_scores_says_none():
    m = ClassMeter()
    m.add(np.zeros(3), np.zeros(3), None)
    assert (m.top1, m.top5, m.divergence, m.accuracy) == (None, None, None, None)


# --- what a sample can tell ---------------------------------------------------------------------------------


def test_wilson_by_the_book():
    """Wilson's interval for 8 of 10 is 0.490 to 0.943."""
    assert wilson(8, 10) == pytest.approx((0.490, 0.943), abs=5e-4)
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == pytest.approx(1)
    assert wilson(10, 10)[0] > 0.6


@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_share(total, data):
    right = data.draw(st.integers(0, total))
    low, high = wilson(right, total)
    assert 0 <= low <= right / total + 1e-12
    assert right / total - 1e-12 <= high <= 1


def test_mcnemar_is_a_fair_coin():
    assert mcnemar(0, 0) == 1
    assert mcnemar(5, 5) == 1
    assert mcnemar(10, 0) == pytest.approx(2 / 1024)
    assert mcnemar(3, 1) == pytest.approx(10 / 16)


# --- distributions ------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(hnp.arrays(np.float64, st.integers(1, 300), elements=st.floats(1e-10, 1e4)))
def test_quantiles_are_within_two_percent(numbers):
    histogram = LogHistogram()
    for part in np.array_split(numbers, 3):
        histogram.add(part)
    for share in (0.5, 0.9, 0.99):
        exact = np.sort(numbers)[max(0, math.ceil(share * len(numbers)) - 1)]
        assert histogram.quantile(share) == pytest.approx(exact, rel=0.02)


def test_quantiles_at_the_edges():
    empty = LogHistogram()
    assert empty.quantile(0.5) == 0
    empty.add(np.array([0.0, 0.0, np.nan, np.inf]))
    assert empty.quantile(0.5) == 0
    assert empty.quantile(0.99) > 9e5


def test_the_worst_sample_is_among_the_quantiles(tmp_path):
    r = np.random.default_rng(0).standard_normal((1000, 8))
    c = r * (1 + 1e-3)
    c[123] *= 2
    m = DriftMeter("y", Format.FP16)
    m.add(r, c, 1000, "feed")
    drift = m.result()
    assert drift.quantiles.half == pytest.approx(1e-3, rel=0.5)
    assert drift.quantiles.ninety_nine < 0.01 < drift.worst_sample_error
    assert drift.worst_samples[0].sample == "feed row 123"
    assert drift.max_abs_sample == "feed"


@pytest.mark.parametrize("target", [Format.FP16, Format.BF16, Format.FP32])
def test_one_step_of_a_format_is_one_ulp(target):
    one = np.array([1.0, 1.5, 0.75, -3.0])
    dtype = target.dtype
    if target is Format.BF16:
        step = (one.astype(dtype).view(np.uint16) + 1).view(dtype)
    else:
        step = np.nextafter(one.astype(dtype), dtype.type(np.inf) * np.sign(one).astype(dtype))
    for r, c in zip(one, step.astype(np.float64), strict=True):
        assert worst_ulp(np.array([r]), np.array([c]), target) == pytest.approx(1)


@given(hnp.arrays(np.float32, 20, elements=st.floats(-60000, 60000, width=32)))
def test_rounding_alone_is_half_an_ulp_at_most(numbers):
    assert worst_ulp(numbers, numbers.astype(np.float16), Format.FP16) <= 0.5 + 1e-9
    assert worst_ulp(numbers, numbers.astype(ml_dtypes.bfloat16), Format.BF16) <= 0.5 + 1e-9


def test_ulps_leave_out_what_is_not_finite():
    assert worst_ulp(np.array([np.nan, np.inf]), np.array([1.0, np.inf]), Format.FP16) == 0


# --- embeddings, boxes --------------------------------------------------------------------------------------


def test_retrieval_agrees_unless_neighbours_change():
    rng = np.random.default_rng(0)
    base = rng.standard_normal((20, 8))
    pairs = np.concatenate([base, base + 1e-2 * rng.standard_normal((20, 8))])  # each has a twin
    good, bad = RetrievalMeter(), RetrievalMeter()
    good.add(pairs, pairs * 3 + 1e-3 * rng.standard_normal(pairs.shape))
    bad.add(pairs, rng.standard_normal(pairs.shape))
    assert good.result() == 1
    assert bad.result() < 0.3
    assert RetrievalMeter().result() is None


def test_retrieval_holds_a_bounded_number_and_no_nan_agrees():
    m = RetrievalMeter()
    rows = np.random.default_rng(1).standard_normal((300, 4))
    for _ in range(4):
        m.add(rows, np.where(np.arange(300)[:, None] < 150, np.nan, rows))
    assert sum(map(len, m._reference)) == KEPT
    assert m.result() <= 0.6


def test_iou_by_hand():
    a = np.array([[0, 0, 2, 2], [0, 0, 0, 0]])
    b = np.array([[1, 1, 3, 3], [0, 0, 2, 2], [5, 5, 6, 6]])
    np.testing.assert_allclose(iou(a, b), [[1 / 7, 1, 0], [0, 0, 0]])
    assert iou(np.zeros((0, 4)), b).shape == (0, 3)


def detections(*rows):
    array = np.array(rows, np.float64).reshape(-1, 6)
    return Detections(array[:, :4], array[:, 4], array[:, 5])


def test_boxes_match_although_their_numbers_and_order_differ():
    r = detections([0, 0, 10, 10, 0.9, 1], [20, 20, 30, 30, 0.8, 2])
    c = detections([20, 20, 30, 31, 0.79, 2], [50, 50, 60, 60, 0.26, 1], [0, 0, 10, 10, 0.9, 1])
    m = match(r, c)
    assert (m.reference, m.candidate) == (2, 3)
    assert sorted(m.overlaps) == pytest.approx([10 / 11, 1])
    assert max(m.score_errors) == pytest.approx(0.01)


def test_boxes_of_another_class_do_not_match_and_each_matches_once():
    r = detections([0, 0, 10, 10, 0.9, 1], [0, 0, 10, 9, 0.9, 1])
    assert match(r, detections([0, 0, 10, 10, 0.9, 2])).overlaps == ()
    assert len(match(r, detections([0, 0, 10, 10, 0.9, 1])).overlaps) == 1
    assert match(detections(), detections()).overlaps == ()
    nan = detections([np.nan, 0, 10, 10, 0.9, 1])
    assert match(r, nan).overlaps == ()


@settings(deadline=None)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=6))
def test_a_scatter_is_evenly_spaced_and_bounded(sizes):
    scatter, start = Scatter(), 0
    for size in sizes:
        numbers = np.arange(start, start + size, dtype=np.float64)
        scatter.add(numbers, -numbers)
        start += size
    pairs = scatter.result()
    assert len(pairs) == min(start, len(pairs)) <= PAIRS
    if start:
        firsts = [r for r, _ in pairs]
        assert all(c == -r for r, c in pairs)
        assert len(set(np.diff(firsts))) <= 1
        assert firsts[0] == 0
        assert len(pairs) >= min(start, PAIRS // 2)
