"""Who takes part in a benchmark: each with inputs that it takes, and what went wrong with whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mpdeploy.errors import MpdeployError, UsageError
from mpdeploy.runtime.fit import fit, renamed
from mpdeploy.runtime.runner import Feed, TensorSpec
from mpdeploy.runtime.timing import Latency, summarise
from mpdeploy.session.batches import feed_of_batch, fixed_batch
from mpdeploy.session.opening import Runtime
from mpdeploy.session.worker import First, Opened, Worker
from mpdeploy.source.given import NOTHING, Given


@dataclass(frozen=True)
class Contestant:
    """A file and the runtime that runs it; ``given`` says of a torch model what its file does not."""

    path: Path
    runtime: Runtime
    given: Given = NOTHING

    @property
    def name(self) -> str:
        """File and runtime, as tables show them."""
        return f"{self.path.name} · {self.runtime.value}"


@dataclass(frozen=True)
class BenchSettings:
    """How to measure: batch sizes, rounds, seconds of each contestant's turn and of its warm-up, CPU threads (0: all).

    Without ``batches`` it is the one that the first contestant prescribes, else 1.  ``sizes`` gives open axes by
    name, for inputs that are made up.  One run may take ``timeout`` seconds.
    """

    batches: tuple[int, ...] = ()
    rounds: int = 5
    seconds: float = 1.0
    warmup: float = 1.0
    threads: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    timeout: float | None = None


@dataclass
class Track:
    """A contestant while the benchmark runs: ``samples`` by batch size; ``first`` is of the batch size ``of``."""

    contestant: Contestant
    worker: Worker
    opened: Opened
    feeds: dict[int, Feed]
    first: First
    of: int
    samples: dict[int, list[float]]
    peak: int | None = None

    def latency(self, batch: int) -> Latency:
        """Return what describes the durations of that batch size."""
        return summarise(self.samples[batch])


@dataclass
class Field:
    """Everybody who takes part, and what went wrong with whom."""

    settings: BenchSettings
    row: Feed | None
    tracks: list[Track] = field(default_factory=list)
    faults: list[tuple[Contestant, int | None, MpdeployError]] = field(default_factory=list)
    batches: tuple[int, ...] = ()
    inputs: tuple[TensorSpec, ...] = ()
    made: dict[int, Feed] = field(default_factory=dict)

    def batches_for(self, inputs: tuple[TensorSpec, ...]) -> tuple[int, ...]:
        """Return the batch sizes of the benchmark; the first contestant decides if nobody said."""
        only = fixed_batch(inputs)
        self.batches = self.batches or self.settings.batches or (1 if only is None else only,)
        return self.batches

    def feed(self, inputs: tuple[TensorSpec, ...], batch: int) -> Feed:
        """Return the feed of that size for a contestant: the same for all, under the names that its inputs have.

        A made-up one of its own if it takes other inputs than the first.  Raises ``UsageError`` if it cannot have one.
        """
        only = fixed_batch(inputs)
        if only is not None and only != batch:
            raise UsageError(
                f"its batch size is fixed: {only}", where=f"--batch {batch}", remedy=f"time it with --batch {only}"
            )
        self.inputs = self.inputs or inputs
        try:
            if batch not in self.made:
                self.made[batch] = feed_of_batch(self.inputs, batch, self.row, self.settings.sizes)
            shared = renamed(self.made[batch], self.inputs, inputs)[0]
            if self.row is not None or _fits(shared, inputs):
                return shared
            return feed_of_batch(inputs, batch, None, self.settings.sizes)
        except MemoryError as error:
            raise UsageError(
                "inputs of that size do not fit into memory", where=f"--batch {batch}", remedy="try a smaller --batch"
            ) from error

    def drop(self, track: Track, batch: int, fault: MpdeployError) -> None:
        """Go on without that batch size of a contestant, or without the contestant if its process is gone."""
        self.faults.append((track.contestant, batch, fault))
        never = [] if track.worker.alive else [size for size, samples in track.samples.items() if not samples]
        for lost in (batch, *never):
            track.samples.pop(lost, None)


def _fits(feed: Feed, inputs: Sequence[TensorSpec]) -> bool:
    try:
        fit(feed, inputs, "")
    except UsageError:
        return False
    return True
