"""The inner values of a model while it runs, one array at a time."""

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from mpdeploy.errors import ModelError
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.runtime.probes import exposed
from mpdeploy.runtime.runner import Array, Feed
from mpdeploy.runtime.segments import Segment, bytes_of, fixed_values, segments, symbols, without

_PIECE_BYTES = 64 << 20  # how much of the inner values one run may return


class Observer:
    """Runs a model piece by piece and hands out the values named; memory does not grow with their number.

    Values inside branches and loops come as ``mpdeploy.runtime.probes`` shows them, unless they have another shape in
    each iteration.  Values computed from weights alone are left out.  ``where`` names the model in errors, which are
    those of ``OrtRunner``.
    """

    def __init__(self, model: ir.Model, names: Sequence[str], where: str, threads: int = 0) -> None:
        self._plain = _without_defaults(model)
        model, self._shown = exposed(self._plain, names)
        fixed = fixed_values(model.graph)
        made = {v.name for node in model.graph for v in node.outputs if v.name and v not in fixed}
        self._model, self._where, self._threads = model, where, threads
        self._inputs = [v.name for v in model.graph.inputs if v.name in set(names)]
        self._watched = list(dict.fromkeys(name for name in names if name in made))
        self._pieces: list[tuple[Segment, OrtRunner]] = []

    def run(self, feed: Feed) -> Iterator[tuple[str, Array]]:
        """Yield each watched value's name and array for one feed, inputs first, then in order of execution."""
        for name in self._inputs:
            if name in feed:
                yield str(name), feed[name]
        if not self._watched:
            return
        if not self._pieces:
            self._pieces = self._cut(feed)
        watched = set(self._watched)
        known = dict(feed)
        for number in range(len(self._pieces)):
            segment, results = self._run_piece(number, known)
            for name, array in results.items():
                known[name] = array
                if name in watched:
                    yield name, array
            del results
            for name in segment.spent:
                known.pop(name, None)

    def _run_piece(self, number: int, known: Mapping[str, Array]) -> tuple[Segment, dict[str, Array]]:
        segment, runner = self._pieces[number]
        try:
            return segment, runner.run({name: known[name] for name in segment.inputs})
        except ModelError:
            if self._shown.isdisjoint(segment.outputs):
                raise
        # Values that differ in shape from one iteration to the next cannot be stacked: the piece without them.
        segment = without(segment, self._plain, self._shown)
        runner = OrtRunner(segment.model, self._where, threads=self._threads, lean=True)
        self._pieces[number] = segment, runner
        return segment, runner.run({name: known[name] for name in segment.inputs})

    def _cut(self, feed: Feed) -> list[tuple[Segment, OrtRunner]]:
        """Cut by the sizes that the values have for this feed."""
        size_of = bytes_of(symbols(self._model.graph.inputs, feed))
        pieces = segments(self._model, self._watched, _PIECE_BYTES, size_of)
        return [(piece, OrtRunner(piece.model, self._where, threads=self._threads, lean=True)) for piece in pieces]


def _without_defaults(model: ir.Model) -> ir.Model:
    """Inputs that have a default take it: before IR version 4 all weights are such inputs, and cannot be fed."""
    if not any(v.name in model.graph.initializers for v in model.graph.inputs):
        return model
    copy = model.clone()
    copy.graph.inputs[:] = [v for v in copy.graph.inputs if v.name not in copy.graph.initializers]
    return copy
