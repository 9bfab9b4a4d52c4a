"""Feeds whose arrays are made when somebody asks for them, and whose shapes are known before."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mpdeploy.runtime.runner import Array, Feed


@dataclass(frozen=True)
class Header:
    """What is known of an array without its numbers."""

    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"

    @property
    def length(self) -> int | None:
        """The length of the first axis; None for a single number."""
        return self.shape[0] if self.shape else None

    @property
    def nbytes(self) -> int:
        """The bytes of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize


class LazyFeed(Mapping[str, Array]):
    """Arrays by name, each made by ``make(name)`` when it is first asked for, and kept.

    ``headers`` says what each will be.
    """

    def __init__(self, headers: Mapping[str, Header], make: Callable[[str], Array]) -> None:
        self.headers = headers
        self._make = make
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self.headers:
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def __len__(self) -> int:
        return len(self.headers)

    def __reduce__(self) -> tuple[type[dict[str, Array]], tuple[dict[str, Array]]]:
        return dict, (dict(self),)  # another process gets the arrays themselves


def headers_of(feed: Feed) -> Mapping[str, Header]:
    """Return what is known of each array of a feed, without making any that is not there yet."""
    if isinstance(feed, LazyFeed):
        return feed.headers
    arrays = ((name, np.asarray(array)) for name, array in feed.items())
    return {name: Header(array.shape, array.dtype) for name, array in arrays}


def without(feed: Feed, names: Collection[str]) -> Feed:
    """Return the feed's arrays but those of these names."""
    headers = headers_of(feed)
    return LazyFeed({n: h for n, h in headers.items() if n not in names}, lambda name: np.asarray(feed[name]))


def under_names(feed: Feed, names: Mapping[str, str]) -> Feed:
    """Return the feed with other names for some of its arrays, given by the names that they have."""
    old = {names.get(name, name): name for name in feed}
    headers = headers_of(feed)
    return LazyFeed({new: headers[name] for new, name in old.items()}, lambda new: np.asarray(feed[old[new]]))


def rows(feed: Feed, start: int, stop: int) -> Feed:
    """Return the rows from ``start`` to ``stop`` of every array of a feed."""
    headers = {
        name: replace(header, shape=(max(0, min(stop, header.shape[0]) - start), *header.shape[1:]))
        for name, header in headers_of(feed).items()
    }
    return LazyFeed(headers, lambda name: np.asarray(feed[name])[start:stop])
