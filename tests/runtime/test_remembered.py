"""The reference's results are kept by what was fed."""

import numpy as np

from mpdeploy.runtime.remembered import Remembered


class Counting:
    """Doubles its input, and counts how often it was asked."""

    def __init__(self):
        self.runs = 0

    def run(self, feed):
        self.runs += 1
        return {"y": feed["x"] * 2}


def test_equal_numbers_are_run_once_whatever_holds_them():
    inner = Counting()
    runner = Remembered(lambda: inner)
    for _ in range(3):
        assert runner.run({"x": np.arange(3.0)})["y"].tolist() == [0, 2, 4]
    assert inner.runs == 1


def test_other_numbers_types_shapes_and_texts_are_run():
    inner = Counting()
    runner = Remembered(lambda: inner)
    feeds = [
        np.arange(4.0),
        np.arange(4.0, dtype=np.float32),
        np.arange(4.0).reshape(2, 2),
        np.arange(4.0) + 1,
        np.array(["a", "b"], object),
        np.array(["a", "c"], object),
    ]
    for _ in range(2):
        for x in feeds:
            assert np.array_equal(runner.run({"x": x})["y"], x * 2)
    assert inner.runs == len(feeds)


def test_what_no_longer_fits_is_run_again():
    inner = Counting()
    runner = Remembered(lambda: inner, limit=100)
    for _ in range(2):
        for start in range(3):
            runner.run({"x": np.arange(start, start + 6.0)})  # 48 bytes each
    assert inner.runs == 3 + 1


def test_who_changes_a_result_changes_no_other():
    runner = Remembered(Counting)
    runner.run({"x": np.ones(2)}).clear()
    assert runner.run({"x": np.ones(2)})["y"].tolist() == [2, 2]
