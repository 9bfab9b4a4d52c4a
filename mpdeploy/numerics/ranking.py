"""Agreement of class scores: best classes, Kullback-Leibler divergence, right answers."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_PROBABILITY_SLACK = 1e-2  # half-precision probabilities of a row add up to 1 within this


def class_rows(scores: Array) -> Array | None:
    """Return an (n, classes) view of class scores; None if the array holds no such thing.

    Classes lie along the last axis of arrays of two or three dimensions (rows, or rows of tokens), and along axis 1
    of arrays of four and more (pixels, voxels).
    """
    if scores.ndim < 2 or not scores.size:
        return None
    wide = scores.astype(np.float64) if scores.ndim < 4 else np.moveaxis(scores, 1, -1).astype(np.float64)
    return wide.reshape(-1, wide.shape[-1]) if wide.shape[-1] > 1 else None


def class_count(scores: Array) -> int | None:
    """Return how many classes an array of scores tells apart; None for class numbers and for what holds no scores."""
    rows = class_rows(scores) if scores.dtype.kind not in "iu" else None
    return None if rows is None else int(rows.shape[1])


def class_labels(labels: Array, scores: Array) -> Array | None:
    """Return one label for each of ``class_rows(scores)``; None if the labels do not belong to these scores."""
    expected = scores.shape[:-1] if scores.ndim < 4 else (scores.shape[0], *scores.shape[2:])
    return labels.reshape(-1) if labels.shape == expected else None


def top1_matches(reference: Array, candidate: Array) -> int:
    """Return in how many rows of two (n, classes) arrays the candidate's best class is the reference's best.

    A class that ties with the reference's best counts; a row with NaN in the candidate does not.
    """
    chosen = np.take_along_axis(reference, candidate.argmax(axis=1)[:, None], axis=1)[:, 0]
    return int(((chosen == reference.max(axis=1)) & ~np.isnan(candidate).any(axis=1)).sum())


def topk_matches(reference: Array, candidate: Array, k: int) -> int:
    """Return in how many rows the reference's best class, the first if tied, is among the candidate's ``k`` best.

    A class that ties with the candidate's k-th counts; a row with NaN in the candidate does not.
    """
    best = np.take_along_axis(candidate, reference.argmax(axis=1)[:, None], axis=1)[:, 0]
    better = (candidate > best[:, None]).sum(axis=1)
    return int(((better < k) & ~np.isnan(candidate).any(axis=1)).sum())


def correct(scores: Array, labels: Array) -> Array:
    """Return for each row of an (n, classes) array whether its maximum, the first if tied, is at its label."""
    right: Array = (scores.argmax(axis=1) == labels) & ~np.isnan(scores).any(axis=1)
    return right


def divergences(reference: Array, candidate: Array) -> Array:
    """Return KL(reference || candidate) of each row of two (n, classes) arrays, in nats.

    Rows that are probabilities already count as such; others are logits and go through softmax.
    """
    r, c = _log_probabilities(reference), _log_probabilities(candidate)
    with np.errstate(invalid="ignore"):
        terms = np.where(np.isneginf(r), 0.0, np.exp(r) * (r - c))
    return np.asarray(np.maximum(terms.sum(axis=1), 0.0))


def _log_probabilities(rows: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if rows.min() >= 0 and (np.abs(rows.sum(axis=1) - 1) < _PROBABILITY_SLACK).all():
            return np.asarray(np.log(rows / rows.sum(axis=1, keepdims=True)))
        shifted = rows - rows.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
