"""How much memory the values of a model take in a run, before it has come to them."""

import math
from collections.abc import Mapping

import onnx_ir as ir

from mpdeploy.graph.shapes import inferred_shapes
from mpdeploy.runtime.ort_model import without_weights
from mpdeploy.runtime.runner import Array
from mpdeploy.runtime.segments import symbols

LEAST_UNKNOWN = 1 << 20  # bytes assumed for a value whose shape only a run can tell, where nothing larger is in memory


class Sizes:
    """The bytes of each value as float32, for one feed: known from shapes, or from the run so far.

    A value whose shape only a run can tell is taken to be as large as the largest array in memory.
    """

    def __init__(self, model: ir.Model, feed: Mapping[str, Array]) -> None:
        self._model, self._feed = model, feed
        self._symbols = symbols(model.graph.inputs, feed)
        self._inferred: dict[str, tuple[int, ...]] | None = None
        self._largest = 0

    def held(self, arrays: Mapping[str, Array]) -> None:
        """Say which arrays are in memory now."""
        self._largest = max((array.nbytes for array in arrays.values() if hasattr(array, "nbytes")), default=0)

    def of(self, value: ir.Value) -> int:
        """Return a value's bytes."""
        dims = [d if isinstance(d, int) else self._symbols.get(str(d.value), -1) for d in value.shape or [-1]]
        if any(d < 0 for d in dims):
            if self._inferred is None:
                self._inferred = self._infer()
            dims = list(self._inferred.get(str(value.name), (-1,)))
        return max(self._largest, LEAST_UNKNOWN) if any(d < 0 for d in dims) else 4 * math.prod(dims)

    def _infer(self) -> dict[str, tuple[int, ...]]:
        """Let ONNX work out the shapes that follow from those of this feed."""
        shapes = {name: array.shape for name, array in self._feed.items() if hasattr(array, "shape")}
        return inferred_shapes(without_weights(self._model)[0], shapes)
