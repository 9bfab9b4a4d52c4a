"""The rule of the loss scale, as a pure function."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpdeploy.amp import LossScaling, ScaleState
from mpdeploy.errors import UsageError


def run(rule: LossScaling, steps: str) -> ScaleState:
    """Fold a word of steps: 'o' finite, 'x' not."""
    state = rule.start()
    for step in steps:
        state = rule.update(state, finite=step == "o")
    return state


def test_grows_after_the_interval_and_backs_off_at_once():
    rule = LossScaling(initial=8, interval=3)
    assert [run(rule, "ooo"[:n]).scale for n in range(4)] == [8, 8, 8, 16]
    assert run(rule, "oox").scale == 4
    assert run(rule, "ooxoo").scale == 4, "an overflow starts the interval again"
    assert run(rule, "ooxooo").scale == 8


def test_hysteresis_forgives_single_overflows():
    rule = LossScaling(initial=8, hysteresis=2)
    assert run(rule, "xoxoxo").scale == 8
    assert run(rule, "xx").scale == 4
    assert run(rule, "xxx").scale == 2
    assert run(rule, "xox").bad_streak == 1


def test_floor_and_ceiling_hold():
    rule = LossScaling(initial=4, interval=1, floor=2, ceiling=16)
    assert run(rule, "x" * 200).scale == 2
    assert run(rule, "o" * 200).scale == 16


def test_a_static_scale_never_moves():
    rule = LossScaling.static(128)
    assert {run(rule, word).scale for word in ("o" * 5000, "x" * 50, "oxox")} == {128}


@given(st.text("ox", max_size=60), st.integers(1, 5), st.integers(1, 4))
def test_the_scale_stays_a_power_of_two_within_bounds(word, interval, hysteresis):
    rule = LossScaling(initial=256, interval=interval, hysteresis=hysteresis, floor=1, ceiling=2.0**12)
    state = run(rule, word)
    assert 1 <= state.scale <= 2**12
    assert state.scale == 2 ** (int(state.scale).bit_length() - 1)
    assert state.bad_streak == len(word) - len(word.rstrip("x"))


@pytest.mark.parametrize(
    "values",
    [{"initial": 0}, {"floor": 8, "initial": 4}, {"initial": 8, "ceiling": 4}, {"growth": 0.5}, {"backoff": 0},
     {"backoff": 2}, {"interval": 0}, {"hysteresis": 0}, {"initial": float("nan")}],
)  # fmt: skip
def test_contradictions_are_refused(values):
    with pytest.raises(UsageError, match="choose"):
        LossScaling(**values)
