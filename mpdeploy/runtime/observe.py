"""The inner values of a model while it runs, one array at a time."""

import math
from collections.abc import Iterator, Sequence

import onnx_ir as ir

from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.runtime.runner import Array, Feed

_BATCH_BYTES = 64 << 20  # how much of the inner values one run may return
_UNKNOWN_BYTES = 1 << 20  # assumed for a value whose shape only a run can tell


class Observer:
    """Runs a model and hands out the values named, so many in a run that memory stays bounded.

    Values inside subgraphs cannot be returned by a run and are left out.  ``where`` names the model in errors.
    """

    def __init__(self, model: ir.Model, names: Sequence[str], where: str) -> None:
        values = {v.name: v for node in model.graph for v in node.outputs if v.name}
        self._inputs = [v.name for v in model.graph.inputs if v.name in set(names)]
        wanted = [values[name] for name in names if name in values]
        self._runners = [
            OrtRunner(_with_outputs(model, [v.name for v in batch if v.name]), where) for batch in _batches(wanted)
        ]

    def run(self, feed: Feed) -> Iterator[tuple[str, Array]]:
        """Yield each watched value's name and array for one feed."""
        for name in self._inputs:
            if name in feed:
                yield str(name), feed[name]
        for runner in self._runners:
            yield from runner.run(feed).items()


def _with_outputs(model: ir.Model, names: list[str]) -> ir.Model:
    copy = model.clone()
    values = {v.name: v for node in copy.graph for v in node.outputs}
    copy.graph.outputs[:] = [values[name] for name in names]
    return copy


def _batches(values: list[ir.Value]) -> Iterator[list[ir.Value]]:
    batch: list[ir.Value] = []
    size = 0
    for value in values:
        nbytes = _bytes_of(value)
        if batch and size + nbytes > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(value)
        size += nbytes
    if batch:
        yield batch


def _bytes_of(value: ir.Value) -> int:
    dims = list(value.shape) if value.shape is not None else [None]
    if not all(isinstance(d, int) for d in dims):
        return _UNKNOWN_BYTES
    return 4 * math.prod(d for d in dims if isinstance(d, int))
