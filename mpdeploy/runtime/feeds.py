"""Data for a model, as a stream of feeds that can be read again and again, one in memory at a time.

``--data D`` names one ``.npz`` file (one feed; its keys are the input names), a folder of ``.npz`` files (one feed
each, in the natural order of their names), or ``module.py:callable`` that yields dicts of arrays.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mpdeploy.errors import UsageError
from mpdeploy.files import readable_file, sha256_of
from mpdeploy.runtime.npz import read_npz
from mpdeploy.runtime.plugins import failed, is_plugin, load_plugin
from mpdeploy.runtime.runner import Feed

LABELS = "labels"  # the key of the true classes
TARGETS = "targets"  # the key of other true values; of an output's own with `.NAME` after it


@dataclass(frozen=True)
class Feeds:
    """A stream of feeds.  Iterating opens the source anew each time.

    ``name`` says where they come from; ``count`` is how many there are, None if only reading tells.  ``opener``
    starts a new pass over pairs of a feed's name and the feed; ``digest`` hashes the files behind them.
    """

    name: str
    opener: Callable[[], Iterator[tuple[str, Feed]]]
    count: int | None = None
    digest: Callable[[], str] = lambda: ""

    def __iter__(self) -> Iterator[Feed]:
        """Yield the feeds."""
        for _, feed in self.labelled():
            yield feed

    def labelled(self) -> Iterator[tuple[str, Feed]]:
        """Yield each feed after a name for it, for messages.  Raises ``UsageError`` if there is none at all."""
        some = False
        for label, feed in self.opener():
            some = True
            yield label, feed
        if not some:
            raise UsageError("the data holds no feed", where=self.name, remedy="give at least one sample")

    def sha256(self) -> str:
        """Return a digest of the data's files, 64 hexadecimal digits; empty for arrays that are no file."""
        return self.digest()

    def through(self, wrap: Callable[[Iterator[tuple[str, Feed]]], Iterator[tuple[str, Feed]]]) -> "Feeds":
        """Return the same feeds seen through ``wrap``: how a caller shows progress."""
        return replace(self, opener=lambda: wrap(self.opener()))

    def first(self, count: int) -> "Feeds":
        """Return the first ``count`` of the feeds."""
        few = None if self.count is None else min(self.count, count)
        return replace(self, opener=lambda: itertools.islice(self.opener(), count), count=few)

    def among(self, labels: Collection[str]) -> "Feeds":
        """Return the feeds of these names."""
        return replace(self, opener=lambda: (pair for pair in self.opener() if pair[0] in labels), count=None)


def open_feeds(source: str) -> Feeds:
    """Return the feeds that ``--data SOURCE`` names; raises ``UsageError`` if there are none."""
    if is_plugin(source):
        return _from_callable(source)
    path = Path(source)
    if path.is_dir():
        return _from_folder(path)
    if path.suffix == ".py":
        raise UsageError(
            "the data module needs the name of a function", where=source, remedy=f"write {source}:FUNCTION"
        )
    readable_file(path, "data file")
    return Feeds(source, lambda: iter([(source, read_npz(path))]), 1, lambda: sha256_of(path))


def is_answer(name: str) -> bool:
    """Tell whether an array of this name holds right answers, and feeds no model."""
    return name in (LABELS, TARGETS) or name.startswith(f"{TARGETS}.")


Data = str | Path | Feeds | Feed | Iterable[Feed]
"""What Python code may mean by data; see ``as_feeds``."""


def as_feeds(data: Data) -> Feeds:
    """Return the feeds that Python code means: what ``--data`` names, one dict of arrays, or an iterable of them."""
    if isinstance(data, Feeds):
        return data
    if isinstance(data, str | Path):
        return open_feeds(str(data))
    return feeds_of([data] if isinstance(data, Mapping) else data)


def feeds_of(feeds: Iterable[Feed], name: str = "arrays") -> Feeds:
    """Return feeds over dicts of arrays that Python code holds: a list, or any iterable that can be read again."""

    def opener() -> Iterator[tuple[str, Feed]]:
        for i, feed in enumerate(feeds):
            yield f"{name} #{i}", _checked(feed, f"{name} #{i}")

    count = len(feeds) if isinstance(feeds, (list, tuple)) else None
    return Feeds(name, opener, count)


def _from_folder(folder: Path) -> Feeds:
    files = sorted(folder.glob("*.npz"), key=_natural)
    if not files:
        raise UsageError(
            "the data folder holds no .npz file", where=str(folder), remedy="save one .npz file for each feed"
        )

    def digest() -> str:
        total = hashlib.sha256()
        for file in files:
            total.update(f"{file.name} {sha256_of(file)}\n".encode())
        return total.hexdigest()

    return Feeds(str(folder), lambda: ((str(file), read_npz(file)) for file in files), len(files), digest)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key that puts ``2.npz`` before ``10.npz``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _from_callable(name: str) -> Feeds:
    made = load_plugin(name, "data")
    path = Path(name.rpartition(":")[0])

    def opener() -> Iterator[tuple[str, Feed]]:
        try:
            produced = made()
            items = iter([produced] if isinstance(produced, Mapping) else produced)
        except Exception as error:
            raise failed(error, "data", name) from error
        index = 0
        while True:
            try:
                feed = next(items)
            except StopIteration:
                return
            except Exception as error:
                raise failed(error, "data", name) from error
            yield f"{name} #{index}", _checked(feed, f"{name} #{index}")
            index += 1

    return Feeds(name, opener, None, lambda: sha256_of(path))


def _checked(feed: object, where: str) -> Feed:
    if not isinstance(feed, Mapping):
        raise UsageError(
            f"the data function yielded a {type(feed).__name__}",
            where=where,
            remedy="yield dicts that map input names to arrays",
        )
    return {str(name): np.asarray(array) for name, array in feed.items()}
