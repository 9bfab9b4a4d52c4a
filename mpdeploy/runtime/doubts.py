"""Data that fit a model's inputs, and yet cannot be what it was made for: told, for nobody else would notice."""

from collections.abc import Sequence

import numpy as np

from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.runner import Array, Feed, TensorSpec

DOUBT = "doubtful data: "  # how each of these remarks begins
_PIXELS = 255
_DARK = 32  # whole numbers below this may be anything: counts, ranks, flags
_IMAGE = 3  # dimensions from which an input may be images


def doubts_of(feed: Feed, inputs: Sequence[TensorSpec]) -> list[str]:
    """Return remarks on a feed: NaN, or raw pixels from 0 to 255, where a model takes floats.

    Args:
        feed: Arrays by input name; others are left out.
        inputs: What the model takes.
    """
    return [
        f"{DOUBT}{remark}"
        for spec in inputs
        if spec.name in feed and spec.dtype.startswith(("float", "bfloat"))
        for remark in _remarks(spec.name, np.asarray(feed[spec.name]))
    ]


def remarking(feeds: Feeds, inputs: Sequence[TensorSpec], found: dict[str, None]) -> Feeds:
    """Return the feeds seen through: whoever reads them collects the remarks on them in ``found``."""

    def seen(label: str, feed: Feed) -> tuple[str, Feed]:
        found.update(dict.fromkeys(doubts_of(feed, inputs)))
        return label, feed

    return feeds.through(lambda items: (seen(label, feed) for label, feed in items))


def _remarks(name: str, array: Array) -> list[str]:
    if not array.size or array.dtype.kind not in "fiu":
        return []
    if array.dtype.kind == "f" and np.isnan(array).any():
        return [f"input '{name}' holds NaN"]
    low, high = array.min(), array.max()
    whole = array.dtype.kind in "iu" or bool((array == np.trunc(array)).all())
    if array.ndim >= _IMAGE and whole and low >= 0 and _DARK <= high <= _PIXELS:
        return [f"input '{name}' holds whole numbers from 0 to 255, as raw pixels are: was their scaling left out?"]
    return []
