"""Scores of tasks whose outputs cannot be compared element by element: detections and masks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mpdeploy.errors import UsageError
from mpdeploy.numerics.boxes import Detections, match
from mpdeploy.numerics.scores import Arrays, Score, Scorer, finite
from mpdeploy.runtime.runner import Array
from mpdeploy.verification.user_scores import UserScorer

_USAGE = "write detection:OUTPUT, detection:boxes=B,scores=S,classes=C or masks:OUTPUT[@THRESHOLD]"
_COLUMNS = 6  # x1 y1 x2 y2 score class


def parse_task(text: str) -> Scorer:
    """Return the scorer that ``--task`` spells; raises ``UsageError`` if it is none.

    ``detection:OUTPUT``: rows of x1 y1 x2 y2 score class.  ``detection:boxes=B,scores=S,classes=C``: an output each,
    classes may be left out.  ``masks:OUTPUT``: class scores along axis 1, or, with one channel, a mask where the
    value exceeds the threshold, 0 by default.
    """
    kind, colon, rest = text.partition(":")
    if not colon or not rest:
        raise UsageError(f"'{text}' is not a task", remedy=_USAGE)
    if kind == "masks":
        return _masks(rest, text)
    if kind != "detection":
        raise UsageError(f"unknown task '{kind}'", where=text, remedy=_USAGE)
    if "=" not in rest:
        return DetectionScorer({"all": rest})
    parts = dict(part.partition("=")[::2] for part in rest.split(","))
    if not {"boxes", "scores"} <= set(parts) <= {"boxes", "scores", "classes"} or not all(parts.values()):
        raise UsageError("a detection needs boxes and scores", where=text, remedy=_USAGE)
    return DetectionScorer(parts)


def _masks(rest: str, text: str) -> Scorer:
    output, _, threshold = rest.partition("@")
    try:
        return MaskScorer(output, float(threshold or 0))
    except ValueError:
        raise UsageError(f"'{threshold}' is not a threshold", where=text, remedy=_USAGE) from None


class DetectionScorer:
    """Matches boxes of one class that overlap by half or more; their number may differ.

    ``boxes`` is the share of boxes with a partner in the other model, 2 · pairs / (boxes of both);  ``box_iou`` the
    mean overlap of pairs, ``box_score`` the mean difference of their scores.
    """

    def __init__(self, outputs: Mapping[str, str]) -> None:
        self._outputs = dict(outputs)
        self._reference = self._candidate = 0
        self._errors = 0.0
        self._pairs, self._overlap = 0, 0.0
        self._worst = (math.inf, "")

    @property
    def covers(self) -> frozenset[str]:
        """The outputs that hold the boxes."""
        return frozenset(self._outputs.values())

    def add(self, reference: Arrays, candidate: Arrays, feed: Arrays, rows: int, where: str) -> None:
        """Take one feed's detections; each image of a batch by itself."""
        ours, theirs = self._images(reference, where), self._images(candidate, where)
        if len(ours) != len(theirs):
            raise UsageError(f"the models give {len(ours)} and {len(theirs)} images", where=where)
        for r, c in zip(ours, theirs, strict=True):
            found = match(r, c)
            self._reference += found.reference
            self._candidate += found.candidate
            self._pairs += len(found.overlaps)
            self._overlap += sum(found.overlaps)
            self._errors += sum(found.score_errors)
            share = _share(len(found.overlaps), found.reference, found.candidate)
            self._worst = min(self._worst, (share, where))

    def result(self) -> tuple[Score, ...]:
        """Return the three scores."""
        share = _share(self._pairs, self._reference, self._candidate)
        counts = f"{self._reference} boxes in the reference, {self._candidate} in the candidate, {self._pairs} pairs"
        pairs = self._pairs or 1
        nothing = self._reference + self._candidate == 0
        return (
            Score("boxes", None if nothing else share, f"share of boxes with a partner: {counts}", self._worst[1]),
            Score("box_iou", finite(self._overlap / pairs), "mean overlap of paired boxes"),
            Score("box_score", finite(self._errors / pairs), "mean difference of their scores"),
        )

    def _images(self, outputs: Arrays, where: str) -> list[Detections]:
        named = {part: _output(outputs, name, where) for part, name in self._outputs.items()}
        if "all" in named:
            rows = named["all"]
            if rows.shape[-1] != _COLUMNS or rows.ndim not in (2, 3):
                raise UsageError(f"detections have shape {list(rows.shape)}", where=where, remedy=_USAGE)
            images = rows[None] if rows.ndim == 2 else rows
            return [_detections(i[:, :4], i[:, 4], i[:, 5]) for i in images]
        boxes, scores = named["boxes"], named["scores"]
        classes = named.get("classes", np.zeros_like(scores))
        if boxes.shape[-1] != 4 or boxes.shape[:-1] != scores.shape or scores.shape != classes.shape:
            raise UsageError(
                f"boxes {list(boxes.shape)}, scores {list(scores.shape)} and classes {list(classes.shape)} do not fit",
                where=where,
                remedy="give boxes (n, 4) and scores (n), or with images (i, n, 4) and (i, n)",
            )
        if boxes.ndim == 2:
            boxes, scores, classes = boxes[None], scores[None], classes[None]
        return [_detections(*image) for image in zip(boxes, scores, classes, strict=True)]


class MaskScorer:
    """Intersection over union of masks, the mean of all classes that occur."""

    def __init__(self, output: str, threshold: float) -> None:
        self._output, self._threshold = output, threshold
        self._intersections: dict[int, int] = {}
        self._unions: dict[int, int] = {}
        self._worst = (math.inf, "")

    @property
    def covers(self) -> frozenset[str]:
        """Nothing: the scores behind the masks are still held to the budget."""
        return frozenset()

    def add(self, reference: Arrays, candidate: Arrays, feed: Arrays, rows: int, where: str) -> None:
        """Take one feed's masks."""
        r = self._classes(_output(reference, self._output, where))
        c = self._classes(_output(candidate, self._output, where))
        inside = total = 0
        for label in np.union1d(np.unique(r), np.unique(c)):
            both = int(((r == label) & (c == label)).sum())
            either = int(((r == label) | (c == label)).sum())
            self._intersections[int(label)] = self._intersections.get(int(label), 0) + both
            self._unions[int(label)] = self._unions.get(int(label), 0) + either
            inside, total = inside + both, total + either
        self._worst = min(self._worst, (inside / total if total else 1.0, where))

    def result(self) -> tuple[Score, ...]:
        """Return the score ``iou``."""
        shares = [self._intersections[label] / union for label, union in self._unions.items() if union]
        value = finite(sum(shares) / len(shares)) if shares else None
        return (Score("iou", value, f"mean overlap of {len(shares)} classes of '{self._output}'", self._worst[1]),)

    def _classes(self, array: Array) -> Array:
        if array.ndim >= 3 and array.shape[1] > 1:
            broken = np.isnan(array).any(axis=1)
            return np.where(broken, -1, array.argmax(axis=1))
        with np.errstate(invalid="ignore"):
            return np.where(np.isnan(array), -1, (array > self._threshold).astype(np.int64))


def _output(outputs: Arrays, name: str, where: str) -> Array:
    if name not in outputs:
        raise UsageError(
            f"the task names an output '{name}' that the models do not share",
            where=where,
            remedy=f"they share {', '.join(outputs)}",
        )
    return outputs[name]


def _detections(boxes: Array, scores: Array, classes: Array) -> Detections:
    """The detections of an image; rows that fixed-size outputs are padded with, of score 0 or less, left out."""
    real = ~(scores <= 0)
    return Detections(boxes[real], scores[real], classes[real])


def _share(pairs: int, *counts: int) -> float:
    return 2 * pairs / sum(counts) if sum(counts) else 1.0


@dataclass(frozen=True)
class Scoring:
    """What to score beside the outputs' drift: tasks and metrics of the user's, written as their flags are.

    ``labels``: right answers in the data count, where there are any.
    """

    tasks: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    labels: bool = True

    def scorers(self) -> list[Scorer]:
        """Return fresh scorers; faults as in ``parse_task`` and ``UserScorer``."""
        return [*map(parse_task, self.tasks), *map(UserScorer, self.metrics)]


NO_SCORING = Scoring()
