"""Feeds of a wished batch size."""

import numpy as np
import pytest

from mpdeploy.errors import UsageError
from mpdeploy.runtime.runner import TensorSpec
from mpdeploy.session.batches import feed_of_batch, fixed_batch

X = TensorSpec("x", "float32", ("N", 4))
IDS = TensorSpec("ids", "int64", ("N", "length"))
FIXED = TensorSpec("f", "float16", (2, 3))


def test_rows_are_repeated_or_cut():
    data = {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "f": np.ones((2, 3)), "labels": np.zeros(3)}
    feed = feed_of_batch([X, FIXED], 5, data, {})
    np.testing.assert_array_equal(feed["x"], data["x"][[0, 1, 2, 0, 1]])
    assert feed["f"].shape == (2, 3)
    assert feed_of_batch([X], 2, data, {})["x"].shape == (2, 4)


def test_made_up_inputs_are_the_same_every_time():
    first, second = (feed_of_batch([X, IDS, FIXED], 6, None, {"length": 7}) for _ in range(2))
    assert {name: array.shape for name, array in first.items()} == {"x": (6, 4), "ids": (6, 7), "f": (2, 3)}
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert first["ids"].dtype == np.int64
    assert first["x"].std() > 0.1


def test_an_axis_nobody_knows_names_the_flag():
    with pytest.raises(UsageError, match=r"axis 1 of input 'ids' has no size.*--dim length=SIZE"):
        feed_of_batch([IDS], 1, None, {})


def test_a_fixed_batch():
    assert fixed_batch([FIXED]) == 2
    assert fixed_batch([X]) is fixed_batch([X, FIXED]) is None


def test_a_first_axis_that_is_another_axis_is_no_batch():
    positions = TensorSpec("p", "int64", ("length",))
    feed = feed_of_batch([IDS, positions], 3, None, {"length": 7})
    assert {name: array.shape for name, array in feed.items()} == {"ids": (3, 7), "p": (7,)}
    data = {"ids": np.ones((2, 5), np.int64), "p": np.arange(5)}
    feed = feed_of_batch([IDS, positions], 3, data, {})
    assert {name: array.shape for name, array in feed.items()} == {"ids": (3, 5), "p": (5,)}
    with pytest.raises(UsageError, match=r"--dim length=SIZE"):
        feed_of_batch([positions, IDS], 1, None, {})


def test_sizes_of_axes_that_are_none_or_the_batch():
    with pytest.raises(UsageError, match=r"no dynamic axis 'lenght'.*there are length"):
        feed_of_batch([IDS], 1, None, {"lenght": 7, "length": 7})
    with pytest.raises(UsageError, match=r"'N' counts the batch.*--batch"):
        feed_of_batch([X, IDS], 1, None, {"N": 7, "length": 7})


def test_data_without_rows_cannot_be_repeated():
    with pytest.raises(UsageError, match="no rows of input 'x'"):
        feed_of_batch([X], 2, {"x": np.ones((0, 4), np.float32)}, {})
