"""The inner values of a model while it runs, one array at a time."""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from mpdeploy.errors import ModelError, UsageError
from mpdeploy.graph.patience import carried
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.runtime.probes import exposed
from mpdeploy.runtime.runner import Array, Feed
from mpdeploy.runtime.segments import Segment, fixed_values, from_the_start, segments, without
from mpdeploy.runtime.sizes import Sizes

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
        self._more: Iterator[Segment] = iter(())
        self._cut_for = -1  # bytes of the largest feed so far

    def run(self, feed: Feed) -> Iterator[tuple[str, Array]]:
        """Yield each watched value's name and array for one feed, inputs first, then in order of execution."""
        for name in self._inputs:
            if name in feed:
                yield str(name), feed[name]
        if not self._watched:
            return
        sizes = Sizes(self._model, feed)
        if (weight := sum(np.asarray(array).nbytes for array in feed.values())) > self._cut_for:
            # Cut by the sizes that the values have for this feed, as far as it has come; smaller feeds fit, too.
            self._cut_for, self._pieces = weight, []
            self._more = segments(self._model, self._watched, _PIECE_BYTES, lambda value: sizes.of(value))
        watched = set(self._watched)
        known, number = dict(feed), 0
        while self._has(number, known, sizes):
            segment, results = self._run_piece(number, known, feed)
            for name, array in results.items():
                known[name] = array
                if name in watched:
                    yield name, array
            del results
            for name in segment.spent:
                known.pop(name, None)
            number += 1

    def _has(self, number: int, known: Feed, sizes: Sizes) -> bool:
        """Whether there is a piece of this number; cuts it off if it is the next one."""
        if number < len(self._pieces):
            return True
        sizes.held(known)
        segment = next(self._more, None)
        if segment is None:
            return False
        self._pieces.append(self._opened(segment))
        return True

    def _opened(self, segment: Segment) -> tuple[Segment, OrtRunner]:
        """Load a piece; one that the runtime refuses is taken from the model's start: it is our cut, not the model."""
        try:
            return segment, self._runner(segment)
        except (ModelError, UsageError):
            whole = from_the_start(segment, self._model)
            return whole, self._runner(whole)

    def _runner(self, segment: Segment) -> OrtRunner:
        return OrtRunner(segment.model, self._where, threads=self._threads, lean=True)

    def _run_piece(self, number: int, known: Feed, feed: Feed) -> tuple[Segment, dict[str, Array]]:
        segment, runner = self._pieces[number]
        given = {**feed, **known}
        try:
            return segment, runner.run({name: given[name] for name in segment.inputs})
        except (ModelError, UsageError):
            self._pieces[number] = segment, runner = self._instead(segment)
        return segment, runner.run({name: given[name] for name in segment.inputs})

    def _instead(self, segment: Segment) -> tuple[Segment, OrtRunner]:
        """Return a piece for the one that failed.

        Values that differ in shape from one iteration to the next cannot be stacked: the piece without them.  Any other
        is taken from the model's start: what the cut took from it is no fault of the model.
        """
        if self._shown.isdisjoint(segment.outputs):
            segment = from_the_start(segment, self._model)
        else:
            segment = without(segment, self._plain, self._shown)
        return segment, self._runner(segment)


def _without_defaults(model: ir.Model) -> ir.Model:
    """Inputs that have a default take it: before IR version 4 all weights are such inputs, and cannot be fed."""
    if not any(v.name in model.graph.initializers for v in model.graph.inputs):
        return model
    copy = carried(model, model.clone())
    copy.graph.inputs[:] = [v for v in copy.graph.inputs if v.name not in copy.graph.initializers]
    return copy
