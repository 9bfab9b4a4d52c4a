"""Detections of two models, whose numbers may differ: which box is which, and how well they agree."""

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Detections:
    """The boxes of one image: (n, 4) corners x1 y1 x2 y2, (n,) scores, (n,) classes."""

    boxes: Array
    scores: Array
    classes: Array


@dataclass(frozen=True)
class Matched:
    """Two sets of detections, matched: their sizes, and of each pair the overlap and the difference of scores."""

    reference: int
    candidate: int
    overlaps: tuple[float, ...]
    score_errors: tuple[float, ...]


def match(reference: Detections, candidate: Detections, least: float = 0.5) -> Matched:
    """Return the pairs of boxes of one class that overlap by ``least`` or more, best overlap first, each box once."""
    overlap = iou(reference.boxes, candidate.boxes)
    overlap[reference.classes[:, None] != candidate.classes[None, :]] = 0.0
    overlaps, errors = [], []
    while overlap.size and overlap.max() >= least:
        r, c = np.unravel_index(int(overlap.argmax()), overlap.shape)
        overlaps.append(float(overlap[r, c]))
        errors.append(abs(float(reference.scores[r]) - float(candidate.scores[c])))
        overlap[r, :] = overlap[:, c] = -1.0
    return Matched(len(reference.boxes), len(candidate.boxes), tuple(overlaps), tuple(errors))


def iou(a: Array, b: Array) -> Array:
    """Return the (n, m) intersections over unions of (n, 4) and (m, 4) boxes given by corners; 0 for empty boxes."""
    a, b = a.reshape(-1, 4).astype(np.float64), b.reshape(-1, 4).astype(np.float64)
    with np.errstate(invalid="ignore"):
        low = np.maximum(a[:, None, :2], b[None, :, :2])
        high = np.minimum(a[:, None, 2:], b[None, :, 2:])
        inside = np.clip(high - low, 0, None).prod(axis=2)
        areas = [np.clip(x[:, 2:] - x[:, :2], 0, None).prod(axis=1) for x in (a, b)]
        union = areas[0][:, None] + areas[1][None, :] - inside
        return np.nan_to_num(np.where(union > 0, inside / np.where(union > 0, union, 1.0), 0.0))
