"""The reference's own noise: how far it is from itself when it runs in another way.  No budget can ask for less."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mpdeploy.numerics.drift import OutputDrift
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.compare import compare
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.runner import Feed, Runner
from mpdeploy.runtime.slices import slices

FEEDS = 2  # noise is a matter of sums and kernels, not of samples: a few tell


@dataclass(frozen=True)
class Noise:
    """How far one output of the reference is from itself, run in another ``way``.  Metrics as in ``OutputDrift``."""

    way: str
    output: str
    cosine: float | None
    norm_relative: float | None
    worst_sample: float | None
    max_abs: float | None
    match: float | None

    @property
    def size(self) -> float:
        """The norm-relative error, or for integers the share that differs; infinite if not finite."""
        if self.match is not None:
            return 1 - self.match
        return float("inf") if self.norm_relative is None else self.norm_relative


def measure_noise(reference: Runner, others: Iterable[tuple[str, Runner]], feeds: Feeds) -> tuple[Noise, ...]:
    """Return the noise of every output in each of the other ways to run, on the first ``FEEDS`` feeds or slices.

    ``others`` are made one at a time, so that one is in memory beside the reference.
    """
    some = replace(feeds, opener=lambda: _sliced(feeds, reference)).first(FEEDS)
    noise: list[Noise] = []
    for way, runner in others:
        noise += _of(way, compare(reference, runner, some, Format.FP32, labels=False).outputs)
        del runner  # before the next is made
    return tuple(noise)


def _sliced(feeds: Feeds, reference: Runner) -> Iterator[tuple[str, Feed]]:
    for where, feed in feeds.labelled():
        for _, part in slices(feed, reference.inputs):
            yield where, part


def loudest(noise: Sequence[Noise], output: str) -> Noise | None:
    """Return an output's largest noise."""
    return max((n for n in noise if n.output == output), key=lambda n: n.size, default=None)


def _of(way: str, outputs: Sequence[OutputDrift]) -> Iterator[Noise]:
    for o in outputs:
        yield Noise(
            way=way,
            output=o.name,
            cosine=o.cosine,
            norm_relative=o.norm_relative,
            worst_sample=o.worst_sample_error,
            max_abs=o.max_abs,
            match=o.match if o.exact else None,
        )
