"""The inner values of two models on the same data, pair by pair, in bounded memory."""

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from mpdeploy.runtime.emulator import PLAIN, Arithmetic, twin_of, widened
from mpdeploy.runtime.fit import fit, renamed
from mpdeploy.runtime.observe import Observer
from mpdeploy.runtime.pairs import Pair
from mpdeploy.runtime.runner import Array, Feed, TensorSpec, input_specs
from mpdeploy.runtime.twin import runnable


class InnerRun:
    """Runs a reference and a candidate piece by piece and hands out the arrays of pairs.

    A model with low-precision tensors runs as its float32 twin, so its values come as float32 numbers that its
    formats hold.  ``arithmetic`` is the candidate's.
    """

    def __init__(
        self,
        reference: ir.Model,
        candidate: ir.Model,
        pairs: Sequence[Pair],
        where: tuple[str, str],
        arithmetic: Arithmetic = PLAIN,
    ) -> None:
        self._pairs = pairs
        ours = runnable(reference)
        theirs = runnable(candidate) if arithmetic == PLAIN else twin_of(candidate, arithmetic).model
        self._inputs = input_specs(reference), input_specs(candidate)
        self._ours = Observer(ours, [p.name for p in pairs], where[0])
        self._theirs = Observer(theirs, [p.partner for p in pairs], where[1])

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that a feed must hold."""
        return self._inputs[0]

    def run(self, feed: Feed, where: str) -> Iterator[tuple[Pair, Array, Array]]:
        """Yield each pair with the reference's and the candidate's array, as soon as both are there.

        The two models advance in step: where both compute in about the same order, few arrays wait.  Raises
        ``UsageError`` that names ``where`` if the feed does not fit.
        """
        ours = self._ours.run(widened(fit(feed, self._inputs[0], where).feed))
        other, _ = renamed(feed, *self._inputs)
        theirs = self._theirs.run(widened(fit(other, self._inputs[1], where).feed))
        left, right = _Waiting(ours), _Waiting(theirs)
        open_pairs: dict[str, list[Pair]] = {}
        for pair in self._pairs:
            open_pairs.setdefault(pair.name, []).append(pair)
        partners: dict[str, Pair] = {p.partner: p for p in self._pairs}
        while not (left.done and right.done):
            side = left if right.done or (not left.done and len(left.held) <= len(right.held)) else right
            name = side.advance()
            if name is None:
                continue
            for pair in list(open_pairs.get(name, ())) if side is left else _of(partners.get(name)):
                if pair.name in left.held and pair.partner in right.held:
                    yield pair, left.held[pair.name], right.held.pop(pair.partner)
                    open_pairs[pair.name].remove(pair)
                    if not open_pairs[pair.name]:
                        left.held.pop(pair.name)


class _Waiting:
    """An observer's arrays that wait for their partners."""

    def __init__(self, stream: Iterator[tuple[str, Array]]) -> None:
        self._stream = stream
        self.held: dict[str, Array] = {}
        self.done = False

    def advance(self) -> str | None:
        item = next(self._stream, None)
        if item is None:
            self.done = True
            return None
        self.held[item[0]] = item[1]
        return item[0]


def _of(pair: Pair | None) -> list[Pair]:
    return [] if pair is None else [pair]
