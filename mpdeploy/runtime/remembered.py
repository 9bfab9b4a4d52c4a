"""The reference, run once: every plan that is tried is compared with the same results."""

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from mpdeploy.runtime.runner import Array, Execution, Feed, Runner, TensorSpec

_LIMIT = 256 << 20  # bytes of results that are kept; what comes after them is run again


@dataclass
class Remembered:
    """A ``Runner`` that keeps the results of what ``make`` makes by the content of what it was fed.

    The runner is made when it is first needed, and again after ``release``.  ``whole``: all results were kept so far.
    """

    make: Callable[[], Runner]
    limit: int = _LIMIT
    whole: bool = True
    _results: dict[bytes, dict[str, Array]] = field(default_factory=dict)

    @functools.cached_property
    def inner(self) -> Runner:
        """What runs where nothing is remembered."""
        return self.make()

    @functools.cached_property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that a feed must hold."""
        return self.inner.inputs

    @functools.cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs, in the model's order."""
        return self.inner.outputs

    def run(self, feed: Feed) -> dict[str, Array]:
        """Return the outputs by name, from memory if the same numbers were fed before."""
        key = _key(feed)
        if key in self._results:
            return dict(self._results[key])
        results = self.inner.run(feed)
        size = sum(array.nbytes for array in results.values())
        if size <= self.limit:
            self.limit -= size
            self._results[key] = dict(results)
        else:
            self.whole = False
        return results

    def release(self) -> None:
        """Let the runner go, with its weights; the results stay."""
        self.__dict__.pop("inner", None)

    def describe(self) -> Execution:
        """Return exactly what runs."""
        return self.inner.describe()


def _key(feed: Feed) -> bytes:
    digest = hashlib.sha256()
    for name, array in feed.items():
        text = array.dtype.kind == "O"  # such an array holds addresses
        digest.update(f"{name} {array.dtype} {array.shape} {array.tolist() if text else ''}".encode())
        digest.update(b"" if text else array.tobytes())
    return digest.digest()
