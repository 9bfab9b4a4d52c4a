"""Agreement of embeddings: do two models find the same nearest neighbour?"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

KEPT = 512  # embeddings that are held; enough for a share, and bounded


class RetrievalMeter:
    """Holds the first ``KEPT`` embeddings of both models and compares nearest neighbours among them."""

    def __init__(self) -> None:
        self._reference: list[Array] = []
        self._candidate: list[Array] = []
        self._count = 0

    def add(self, reference: Array, candidate: Array) -> None:
        """Take the embeddings of two (n, features) arrays."""
        room = KEPT - self._count
        if room > 0:
            self._reference.append(reference[:room].astype(np.float32))
            self._candidate.append(candidate[:room].astype(np.float32))
            self._count += len(self._reference[-1])

    def result(self) -> float | None:
        """Return the share of embeddings whose nearest neighbour by cosine is the same; None below 3 embeddings.

        A neighbour that the reference finds just as near (within 1e-6) counts as the same.
        """
        if self._count < 3:
            return None
        ours = _similarities(np.concatenate(self._reference))
        theirs = _similarities(np.concatenate(self._candidate))
        chosen = np.take_along_axis(ours, theirs.argmax(axis=1)[:, None], axis=1)[:, 0]
        same = chosen >= ours.max(axis=1) - 1e-6
        return float((same & np.isfinite(theirs).any(axis=1)).mean())


def _similarities(rows: Array) -> Array:
    finite = np.asarray(np.isfinite(rows).all(axis=1))
    with np.errstate(invalid="ignore", over="ignore"):
        wide = np.where(finite[:, None], rows, 0).astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    unit = wide / np.where(norms > 0, norms, 1.0)
    similarity = unit @ unit.T
    np.fill_diagonal(similarity, -np.inf)
    similarity[~finite] = -np.inf
    return np.asarray(similarity)
