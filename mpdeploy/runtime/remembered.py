"""The reference, run once: a search compares every plan with the same results."""

import hashlib
from dataclasses import dataclass, field

from mpdeploy.runtime.runner import Array, Execution, Feed, Runner, TensorSpec

_LIMIT = 256 << 20  # bytes of results that are kept; what comes after them is run again


@dataclass
class Remembered:
    """A ``Runner`` that keeps the results of ``inner`` by the content of what it was fed."""

    inner: Runner
    limit: int = _LIMIT
    _results: dict[bytes, dict[str, Array]] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that a feed must hold."""
        return self.inner.inputs

    @property
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
        return results

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
