"""The drift of every value along the graph, measured in one pass over the data."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mpdeploy.numerics import metrics
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.metrics import Array, Sums
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.inner import InnerRun
from mpdeploy.runtime.pairs import Pair
from mpdeploy.runtime.slices import slices

LOOPED = 48  # so many values of a loop's body are kept for all its iterations at once
_FORMATS = {"float16": Format.FP16.value, "bfloat16": Format.BF16.value, "float32": Format.FP32.value}


@dataclass(frozen=True)
class Layer:
    """One value along the graph: how far the candidate's is from the reference's, over all samples.

    ``value`` is the reference's name, ``partner`` the candidate's; ``node`` and ``op`` name the reference's node
    that computes it, empty for an input.  ``format`` is the candidate's at this place.  ``narrowed``: the value is
    FP32 in the candidate and this is its copy in the low format, which ``readers`` read.  ``error`` is
    norm-relative, None if not finite; for integers and booleans (``exact``) the share that differs.  ``added`` is
    what the node itself added: the error that is more than the largest of its inputs' (as squares).  ``broken``
    counts elements that are finite in the reference only, ``vanished`` those that became 0, ``largest`` is the
    reference's largest magnitude; ``sample`` names the feed where it broke first.  ``within`` are the reference's
    nodes whose branches or bodies hold the value, outermost first; ``iteration`` is the one, from 0, of the outermost
    loop in which it broke first, None outside of loops.
    """

    value: str
    partner: str
    node: str
    op: str
    format: str
    narrowed: bool
    exact: bool
    elements: int
    error: float | None
    added: float | None
    max_abs: float | None
    largest: float
    broken: int
    vanished: int
    sample: str
    sources: tuple[str, ...]
    readers: tuple[str, ...]
    within: tuple[str, ...] = ()
    iteration: int | None = None


def measure_layers(run: Callable[[Sequence[Pair]], InnerRun], pairs: Sequence[Pair], feeds: Feeds) -> tuple[Layer, ...]:
    """Return the drift of all pairs that could be compared, in the candidate's order of execution.

    ``run`` makes what runs both models and shows some pairs.  One pass over the data, or a few where loops hold so many
    values that their iterations would not fit in memory.  Raises ``UsageError`` if the data do not fit.
    """
    meters: dict[str, _Meter] = {}
    for some in _rounds(pairs):
        running = run(some)
        for where, whole in feeds.labelled():
            for _, feed in slices(whole, running.inputs):
                for pair, reference, candidate in running.run(feed, where):
                    if reference.shape == candidate.shape and reference.size:
                        meters.setdefault(pair.partner, _Meter()).add(reference, candidate, where, pair.looped)
    layers = [meters[pair.partner].layer(pair) for pair in pairs if pair.partner in meters]
    return tuple(_with_added(layers))


def _rounds(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """The pairs in as few parts as give each loop at most ``LOOPED`` of its values in one."""
    parts: dict[int, list[Pair]] = {0: []}
    seen: Counter[str] = Counter()
    for pair in pairs:
        part = 0
        if pair.looped:
            part = seen[pair.within[0]] // LOOPED
            seen[pair.within[0]] += 1
        parts.setdefault(part, []).append(pair)
    yield from parts.values()


class _Meter:
    def __init__(self) -> None:
        self._sums = Sums()
        self._exact = False
        self._elements = self._different = self._vanished = 0
        self._sample = ""
        self._iteration: int | None = None
        self._largest = 0.0

    def add(self, reference: Array, candidate: Array, where: str, looped: bool) -> None:
        self._elements += reference.size
        if reference.dtype.kind != "f":
            self._exact = True
            self._different += int((reference != candidate).sum())
            return
        found = metrics.sums(reference, candidate)
        if found.broken and not self._sums.broken:
            self._sample = where
            if looped:
                broken = np.isfinite(reference) & ~np.isfinite(candidate)
                self._iteration = int(broken.reshape(len(broken), -1).any(axis=1).argmax())
        self._sums += found
        self._largest = max(self._largest, _largest_finite(reference))
        self._vanished += int(np.count_nonzero((candidate == 0) & (reference != 0)))

    def layer(self, pair: Pair) -> Layer:
        error = self._different / self._elements if self._exact else metrics.norm_relative_error(self._sums)
        return Layer(
            value=pair.name,
            partner=pair.partner,
            node=pair.node,
            op=pair.op,
            format=_FORMATS.get(pair.dtype, pair.dtype),
            narrowed=pair.narrowed,
            exact=self._exact,
            elements=self._elements,
            error=_finite(error),
            added=None,
            max_abs=None if self._exact else _finite(metrics.max_abs_error(self._sums)),
            largest=self._largest,
            broken=self._sums.broken,
            vanished=self._vanished,
            sample=self._sample,
            sources=pair.sources,
            readers=pair.readers,
            within=pair.within,
            iteration=self._iteration,
        )


def _with_added(layers: Sequence[Layer]) -> Iterator[Layer]:
    errors = {layer.partner: layer.error for layer in layers}
    for layer in layers:
        inputs = [errors.get(source, 0.0) for source in layer.sources]
        added = None
        if layer.error is not None and all(e is not None for e in inputs):
            before = max((e for e in inputs if e is not None), default=0.0)
            added = math.sqrt(max(0.0, layer.error**2 - before**2))
        yield replace(layer, added=added)


def _largest_finite(array: Array) -> float:
    top = float(np.abs(array).max())
    return top if math.isfinite(top) else float(np.abs(array[np.isfinite(array)]).max(initial=0.0))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
