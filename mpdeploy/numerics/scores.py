"""Scores beside the drift of single outputs: metrics of a task, and the user's own."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mpdeploy.errors import UsageError
from mpdeploy.numerics.metrics import Array

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Score:
    """One score over all samples; ``value`` is None if it is not finite.  ``sample`` names the worst feed, if known."""

    name: str
    value: float | None
    meaning: str
    sample: str = ""


class Scorer(Protocol):
    """Looks at all outputs of both models, feed by feed, and gives scores."""

    @property
    def covers(self) -> frozenset[str]:
        """The outputs that this scorer judges instead of element by element."""

    def add(self, reference: Arrays, candidate: Arrays, feed: Arrays, rows: int, where: str) -> None:
        """Take one feed's outputs, both under the reference's names, and everything that the feed held."""

    def result(self) -> tuple[Score, ...]:
        """Return the scores of all feeds so far."""


def results_of(scorers: Sequence[Scorer]) -> tuple[Score, ...]:
    """Return all scores; ``UsageError`` if two have one name."""
    scores = tuple(score for scorer in scorers for score in scorer.result())
    names = [score.name for score in scores]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two scores are called '{name}'", remedy="give them different names")
    return scores


def finite(value: float) -> float | None:
    """Return the value, or None if it is not finite."""
    return value if math.isfinite(value) else None
