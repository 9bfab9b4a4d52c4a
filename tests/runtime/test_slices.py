"""Large feeds in slices."""

import numpy as np
import pytest

from mpdeploy.runtime.runner import TensorSpec
from mpdeploy.runtime.slices import ROWS, slices

FREE = (TensorSpec("x", "float32", ("N", 4)), TensorSpec("i", "int64", ("N",)))


def feed(rows, width=4, labels=True):
    arrays = {"x": np.arange(rows * width, dtype=np.float32).reshape(rows, width), "i": np.arange(rows)}
    return arrays | ({"labels": np.arange(rows) % 3} if labels else {})


@pytest.mark.parametrize("rows", [ROWS + 1, 3 * ROWS, 5 * ROWS + 7])
def test_slices_put_together_are_the_feed(rows):
    whole = feed(rows)
    parts = list(slices(whole, FREE))
    assert len(parts) == -(-rows // ROWS)
    assert [start for start, _ in parts] == list(range(0, rows, ROWS))
    for name, array in whole.items():
        np.testing.assert_array_equal(np.concatenate([part[name] for _, part in parts]), array)


def test_rows_that_are_large_come_in_smaller_slices():
    whole = {"x": np.zeros((8, 1 << 20), np.float32)}  # 4 MiB each
    assert [len(part["x"]) for _, part in slices(whole, FREE[:1])] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("whole", "inputs"),
    [
        (feed(10), FREE),
        (feed(1000), (TensorSpec("x", "float32", (1000, 4)), FREE[1])),
        (feed(1000), (TensorSpec("x", "float32", None), FREE[1])),
        (feed(1000) | {"labels": np.zeros(3)}, FREE),
        (feed(1000) | {"scale": np.float32(1)}, FREE),
    ],
)
def test_what_is_small_or_cannot_be_cut_stays_whole(whole, inputs):
    ((start, part),) = slices(whole, inputs)
    assert start == 0
    assert part is whole
