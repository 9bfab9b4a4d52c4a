"""Outputs read as class scores, as they stream by."""

from typing import Any

import numpy as np

from mpdeploy.numerics import ranking, significance
from mpdeploy.numerics.significance import Accuracy

Array = np.ndarray[Any, Any]

TOP = 5
IGNORED = -100  # the label of a token or pixel that does not count, as in torch


class ClassMeter:
    """Agreement of the best classes, divergence, and, where there are labels, right answers."""

    def __init__(self) -> None:
        self._rows = self._top1 = self._top5 = self._top5_rows = 0
        self._divergence = 0.0
        self._labelled = self._reference = self._candidate = self._lost = self._gained = 0

    def add(self, reference: Array, candidate: Array, labels: Array | None) -> None:
        """Count two arrays of class scores (see ``ranking.class_rows``); arrays that hold none are left out."""
        r, c = ranking.class_rows(reference), ranking.class_rows(candidate)
        if r is None or c is None:
            return
        self._rows += len(r)
        self._top1 += ranking.top1_matches(r, c)
        self._divergence += float(ranking.divergences(r, c).sum())
        if r.shape[1] > TOP:
            self._top5_rows += len(r)
            self._top5 += ranking.topk_matches(r, c, TOP)
        truth = ranking.class_labels(labels, reference) if labels is not None else None
        if truth is not None:
            self._count(ranking.correct(r, truth), ranking.correct(c, truth), truth)

    def add_ids(self, reference: Array, candidate: Array, labels: Array) -> None:
        """Count two arrays of class numbers, if there is one for each label."""
        if reference.size == labels.size:
            truth = labels.reshape(-1)
            self._count(reference.reshape(-1) == truth, candidate.reshape(-1) == truth, truth)

    def _count(self, reference: Array, candidate: Array, truth: Array) -> None:
        counted = truth != IGNORED
        self._labelled += int(counted.sum())
        self._reference += int((reference & counted).sum())
        self._candidate += int((candidate & counted).sum())
        self._lost += int((reference & ~candidate & counted).sum())
        self._gained += int((candidate & ~reference & counted).sum())

    @property
    def top1(self) -> float | None:
        """The share of rows whose best class is the reference's; None if there were no scores."""
        return self._top1 / self._rows if self._rows else None

    @property
    def top5(self) -> float | None:
        """The share of rows whose best class in the reference is among the candidate's five best."""
        return self._top5 / self._top5_rows if self._top5_rows else None

    @property
    def divergence(self) -> float | None:
        """The mean KL(reference || candidate) of the rows in nats; None if there were no scores, or not finite."""
        mean = self._divergence / self._rows if self._rows else None
        return mean if mean is not None and np.isfinite(mean) else None

    @property
    def accuracy(self) -> Accuracy | None:
        """Right answers on labels; None if there were none."""
        if not self._labelled:
            return None
        return significance.accuracy(self._labelled, self._reference, self._candidate, self._lost, self._gained)
