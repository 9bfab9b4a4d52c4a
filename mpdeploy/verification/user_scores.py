"""The user's own metrics as scores."""

import math
from collections.abc import Mapping
from typing import Any

from mpdeploy.errors import UsageError
from mpdeploy.numerics.scores import Arrays, Score, finite
from mpdeploy.runtime.plugins import failed, load_plugin


class UserScorer:
    """The user's own metric, ``module.py:callable``.

    A function is called for each feed as ``metric(reference, candidate, feed)`` with dicts of arrays and returns a
    number, or a dict of numbers by name; the score is their mean, weighted by samples.  A class is made once, its
    ``add(reference, candidate, feed)`` is called for each feed, and its ``result()`` returns the number or dict.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        made = load_plugin(source, "metric")
        self._name = source.rpartition(":")[2]
        self._object: Any = self._call(made) if isinstance(made, type) else None
        self._function: Any = None if isinstance(made, type) else made
        self._sums: dict[str, float] = {}
        self._worst: dict[str, tuple[float, str]] = {}
        self._rows = 0

    @property
    def covers(self) -> frozenset[str]:
        """Nothing: the outputs are still held to the budget."""
        return frozenset()

    def add(self, reference: Arrays, candidate: Arrays, feed: Arrays, rows: int, where: str) -> None:
        """Take one feed's outputs; ``UsageError`` if the user's code fails."""
        if self._function is None:
            self._call(self._object.add, reference, candidate, feed)
            return
        self._rows += rows
        for name, value in self._numbers(self._call(self._function, reference, candidate, feed)).items():
            self._sums[name] = self._sums.get(name, 0.0) + rows * value
            low, _ = self._worst.get(name, (math.inf, ""))
            if value < low:
                self._worst[name] = value, where

    def result(self) -> tuple[Score, ...]:
        """Return the scores of all feeds so far."""
        if self._function is None:
            numbers = self._numbers(self._call(self._object.result))
        else:
            numbers = {name: total / self._rows for name, total in self._sums.items()}
        return tuple(
            Score(name, finite(value), f"as {self._source} says", self._worst.get(name, (0.0, ""))[1])
            for name, value in numbers.items()
        )

    def _call(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:
            raise failed(error, "metric", self._source) from error

    def _numbers(self, returned: object) -> dict[str, float]:
        named: Mapping[Any, Any] = returned if isinstance(returned, Mapping) else {self._name: returned}
        try:
            return {str(name): float(value) for name, value in named.items()}
        except (TypeError, ValueError):
            raise UsageError(
                f"the metric function returned a {type(returned).__name__}",
                where=self._source,
                remedy="return a number, or a dict of numbers by name",
            ) from None
