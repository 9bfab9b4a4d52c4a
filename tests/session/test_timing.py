"""Durations and what describes them."""

import time

import pytest

from mpdeploy.runtime.timing import summarise, time_runs


def test_percentiles_are_durations_that_occurred():
    latency = summarise([float(n) for n in range(100, 0, -1)])
    assert (latency.median, latency.mean, latency.p95, latency.p99, latency.low) == (50.5, 50.5, 95.0, 99.0, 1.0)
    assert latency.runs == 100
    single = summarise([2.0])
    assert (single.median, single.p95, single.p99) == (2.0, 2.0, 2.0)


def test_slow_runs_are_repeated_three_times_and_fast_ones_until_time_is_up():
    slow = time_runs(lambda: time.sleep(0.01), 0.0)
    assert len(slow) == 3
    assert all(duration >= 0.01 for duration in slow)
    assert len(time_runs(lambda: None, 0.01)) > 100


def test_a_failure_passes_through():
    with pytest.raises(ZeroDivisionError):
        time_runs(lambda: 1 / 0, 0.0)
