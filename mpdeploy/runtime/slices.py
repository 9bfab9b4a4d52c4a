"""A large feed in slices of its first axis, so that a file with thousands of samples runs in bounded memory."""

from collections.abc import Iterator, Sequence

import numpy as np

from mpdeploy.runtime.runner import Feed, TensorSpec

ROWS, BYTES = 256, 8 << 20  # the most that a slice holds


def slices(feed: Feed, inputs: Sequence[TensorSpec]) -> Iterator[tuple[int, Feed]]:
    """Yield the feed in slices, each after the index of its first row; whole if it is small or cannot be cut.

    It can if every input's first axis is free, and all arrays, labels included, have the same length there.
    """
    arrays = {name: np.asarray(array) for name, array in feed.items()}
    lengths = {array.shape[0] if array.ndim else -1 for array in arrays.values()}
    free = all(spec.shape and not isinstance(spec.shape[0], int) for spec in inputs)
    if len(lengths) != 1 or not free or (rows := lengths.pop()) <= 1:
        yield 0, feed
        return
    per_row = max(1, sum(array.nbytes for array in arrays.values()) // rows)
    step = max(1, min(ROWS, BYTES // per_row))
    if rows <= step:
        yield 0, feed
        return
    for start in range(0, rows, step):
        yield start, {name: array[start : start + step] for name, array in arrays.items()}
