"""Errors against true values: hand-made numbers, and any split into feeds gives the same."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpdeploy.numerics.targets import TargetMeter


def measured(reference, candidate, targets, splits=()):
    meter = TargetMeter()
    for parts in zip(
        *(np.split(np.asarray(a, np.float32), splits) for a in (reference, candidate, targets)), strict=True
    ):
        if len(parts[0]):
            meter.add(*parts)
    return meter.result()


def test_errors_by_hand():
    found = measured([[1.0], [2.0]], [[1.5], [4.0]], [[1.0], [1.0]])
    assert (found.reference_mae, found.candidate_mae) == (0.5, 1.75)
    assert found.reference_rmse == pytest.approx(math.sqrt(0.5))
    assert found.candidate_rmse == pytest.approx(math.sqrt(9.25 / 2))
    assert found.change == 1.25
    low, high = found.interval
    assert (low + high) / 2 == pytest.approx(1.25)
    assert found.peak is None
    assert found.reference_psnr is None


@pytest.mark.parametrize(("top", "peak"), [(1.0, 1.0), (200.0, 255.0), (1000.0, 1000.0)])
def test_images_have_a_signal_to_noise_ratio_by_the_range_of_the_targets(top, peak):
    targets = np.zeros((2, 1, 4, 4), np.float32)
    targets[:, 0, 0, 0] = top
    found = measured(targets + np.float32(0.01 * peak), targets + np.float32(0.1 * peak), targets)
    assert found.peak == peak
    assert found.reference_psnr == pytest.approx(40, abs=1e-3)
    assert found.candidate_psnr == pytest.approx(20, abs=1e-3)


def test_an_unknown_target_does_not_count_and_a_broken_output_does():
    found = measured([[1.0, 9.0], [2.0, 9.0]], [[2.0, np.nan], [2.0, 9.0]], [[1.0, np.nan], [np.nan, np.nan]])
    assert (found.samples, found.reference_mae, found.candidate_mae) == (1, 0.0, 1.0)
    broken = measured([[1.0]], [[np.nan]], [[1.0]])
    assert broken.candidate_mae is None
    assert broken.change is None
    assert broken.reference_mae == 0.0


@given(st.integers(2, 20), st.data())
def test_any_split_of_the_samples_gives_the_same(count, data):
    random = np.random.default_rng(count)
    arrays = [random.standard_normal((count, 3)).astype(np.float32) for _ in range(3)]
    splits = data.draw(st.lists(st.integers(1, count - 1), unique=True).map(sorted))
    whole, parts = measured(*arrays), measured(*arrays, splits)
    for name in ("reference_mae", "candidate_mae", "reference_rmse", "candidate_rmse", "change"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-12)
    assert parts.interval == pytest.approx(whole.interval, rel=1e-9)
