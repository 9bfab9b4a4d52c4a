"""A few pairs of elements out of a stream of any length, evenly spaced: what a scatter plot shows."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PAIRS = 256  # at most as many are kept


class Scatter:
    """Keeps every n-th pair of finite elements; n doubles whenever there are too many."""

    def __init__(self) -> None:
        self._seen, self._stride = 0, 1
        self._places = np.zeros(0, np.int64)
        self._pairs = np.zeros((0, 2))

    def add(self, reference: Array, candidate: Array) -> None:
        """Take the pairs of two arrays of one shape."""
        r, c = reference.reshape(-1), candidate.reshape(-1)
        taken = np.arange(-self._seen % self._stride, len(r), self._stride)
        pairs = np.stack([r[taken].astype(np.float64), c[taken].astype(np.float64)], axis=1)
        finite = np.isfinite(pairs).all(axis=1)
        self._pairs = np.concatenate([self._pairs, pairs[finite]])
        self._places = np.concatenate([self._places, self._seen + taken[finite]])
        self._seen += len(r)
        while len(self._pairs) > PAIRS:
            self._stride *= 2
            kept = self._places % self._stride == 0
            self._pairs, self._places = self._pairs[kept], self._places[kept]

    def result(self) -> tuple[tuple[float, float], ...]:
        """Return the pairs (reference, candidate), to six digits."""
        return tuple((float(f"{r:.6g}"), float(f"{c:.6g}")) for r, c in self._pairs)
