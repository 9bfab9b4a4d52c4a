"""Models side by side: alternating rounds in processes of their own, so that a busy machine is unfair to none."""

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from mpdeploy import __version__
from mpdeploy.errors import UsageError
from mpdeploy.files import sha256_of
from mpdeploy.graph import io
from mpdeploy.numerics.drift import DriftMeter
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.runner import Execution, Feed, dtype_name
from mpdeploy.runtime.timing import Latency, summarise
from mpdeploy.runtime.twin import low_formats
from mpdeploy.session.batches import feed_of_batch, fixed_batch
from mpdeploy.session.bench_record import BatchTiming, BenchReport, BenchRow, Difference
from mpdeploy.session.opening import RUNTIMES_OF, Kind, Runtime, kind_of
from mpdeploy.session.worker import First, Opened, Worker
from mpdeploy.source.given import NOTHING, Given

Report = Callable[[float, str], None]

_LOADING = 0.2  # share of the progress bar
_FOR_NUMBERS = "emulation is there for its numbers: its speed says nothing of any deployment"


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

    ``sizes`` gives open axes by name, for inputs that are made up.
    """

    batches: tuple[int, ...] = (1,)
    rounds: int = 5
    seconds: float = 1.0
    warmup: float = 1.0
    threads: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Track:
    """A contestant while the benchmark runs."""

    contestant: Contestant
    worker: Worker
    opened: Opened
    first: First
    samples: dict[int, list[float]]
    peak: int | None = None

    def latency(self, batch: int) -> Latency:
        return summarise(self.samples[batch])


def contestants(paths: Sequence[Path], runtimes: Sequence[Runtime], given: Given = NOTHING) -> tuple[Contestant, ...]:
    """Return every file with every one of the runtimes that takes it, or with its usual one if none is named.

    Usual are ONNX Runtime, OpenVINO for BF16 graphs (which ONNX Runtime's CPU provider cannot run), TensorRT for
    engines, torch for torch models.  Raises ``UsageError`` for a file that none of the runtimes takes.
    """
    found = []
    for path in paths:
        takers = RUNTIMES_OF[kind_of(path)]
        chosen = [runtime for runtime in runtimes if runtime in takers] if runtimes else [_usual(path)]
        if not chosen:
            raise UsageError(
                "none of the runtimes takes this file",
                where=str(path),
                remedy=f"add --runtime {' or '.join(taker.value for taker in takers)}",
            )
        found += [Contestant(path, runtime, given) for runtime in chosen]
    return tuple(dict.fromkeys(found))


def bench(
    entrants: Sequence[Contestant],
    settings: BenchSettings,
    *,
    data: Feeds | None = None,
    machine: str = "",
    progress: Report = lambda share, detail: None,
) -> BenchReport:
    """Time the contestants on the same feeds and return the report.

    ``data`` gives the rows (those of its first feed), else inputs are made up.  ``machine`` describes the
    processor for the record.  Raises whatever a contestant raises: ``UsageError``, ``ModelError``, ``DependencyError``.
    """
    with contextlib.ExitStack() as stack:
        tracks, feeds = _open(stack, entrants, settings, data, progress)
        _take_turns(tracks, feeds, settings, progress)
        for track in tracks:
            track.peak = track.worker.peak()
    baseline = next((track for track in tracks if _is_baseline(track.opened.execution)), None)
    return BenchReport(
        rows=tuple(_row(track, baseline) for track in tracks),
        baseline=None if baseline is None else baseline.contestant.name,
        machine=machine,
        threads=settings.threads,
        rounds=settings.rounds,
        data="made-up inputs" if data is None else data.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tool=f"mpdeploy {__version__}",
    )


def _open(
    stack: contextlib.ExitStack,
    entrants: Sequence[Contestant],
    settings: BenchSettings,
    data: Feeds | None,
    progress: Report,
) -> tuple[list[_Track], dict[int, Feed]]:
    """Start every contestant, one after the other: together they would disturb each other's cold start."""
    row = None if data is None else next(iter(data))
    tracks: list[_Track] = []
    feeds: dict[int, Feed] = {}
    for index, entrant in enumerate(entrants):
        progress(_LOADING * index / len(entrants), f"loading {entrant.name}")
        worker = stack.enter_context(Worker(entrant.path, entrant.runtime, settings.threads, entrant.given))
        opened = worker.opened()
        feeds = feeds or _feeds(opened, settings, row)
        first = worker.first(feeds[min(feeds)])
        tracks.append(_Track(entrant, worker, opened, first, {batch: [] for batch in feeds}))
    return tracks, feeds


def _feeds(opened: Opened, settings: BenchSettings, row: Feed | None) -> dict[int, Feed]:
    only = fixed_batch(opened.inputs)
    batches = settings.batches if only is None else (only,)
    return {batch: feed_of_batch(opened.inputs, batch, row, settings.sizes) for batch in batches}


def _take_turns(tracks: list[_Track], feeds: dict[int, Feed], settings: BenchSettings, progress: Report) -> None:
    total = len(feeds) * (settings.rounds + 1)
    done = 0
    for batch, feed in feeds.items():
        for number in range(settings.rounds + 1):
            what = f"batch {batch}, round {number}" if number else f"batch {batch}, warming up"
            progress(_LOADING + (1 - _LOADING) * done / total, what)
            # Every round begins with another contestant: nobody is always the first after a pause.
            for track in tracks[number % len(tracks) :] + tracks[: number % len(tracks)]:
                if number:
                    track.samples[batch] += track.worker.timed(feed, settings.seconds)
                else:
                    track.worker.timed(feed, settings.warmup)
            done += 1


def _row(track: _Track, baseline: _Track | None) -> BenchRow:
    execution = track.opened.execution
    timings = []
    for batch in track.samples:
        latency = track.latency(batch)
        ratio = None if baseline is None else baseline.latency(batch).median / latency.median
        timings.append(BatchTiming(batch, latency, batch / latency.median, ratio))
    path = track.contestant.path
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return BenchRow(
        name=track.contestant.name,
        path=str(path),
        bytes=io.size_of(path) if kind_of(path) is Kind.ONNX else sum(file.stat().st_size for file in files),
        sha256=sha256_of(path) if path.is_file() else _digest_of(files),
        execution=execution,
        timings=tuple(timings),
        load_seconds=track.opened.seconds,
        first_seconds=track.first.seconds,
        cold_start_seconds=track.first.at - track.worker.started,
        peak_bytes=track.peak,
        drift=() if baseline is None else _differences(baseline.first, track.first),
        caveat=_FOR_NUMBERS if track.contestant.runtime is Runtime.EMULATOR else execution.note,
    )


def _digest_of(files: Sequence[Path]) -> str:
    """Return a hash of the names and contents of a folder's files."""
    return hashlib.sha256("".join(f"{file.name} {sha256_of(file)}\n" for file in files).encode()).hexdigest()


def _differences(reference: First, candidate: First) -> tuple[Difference, ...]:
    found = []
    for name, expected in reference.outputs.items():
        if name in candidate.outputs:
            meter = DriftMeter(name, Format.FP32)
            rows = expected.shape[0] if expected.ndim else 1
            meter.add(expected, candidate.outputs[name], rows, "benchmark")
            result = meter.result()
            found.append(Difference(name, result.norm_relative, result.cosine))
    return tuple(found)


def _is_baseline(execution: Execution) -> bool:
    return execution.runtime == "onnxruntime" and execution.precision == "float32" and execution.evidence


def _usual(path: Path) -> Runtime:
    kind = kind_of(path)
    if kind is not Kind.ONNX:
        return RUNTIMES_OF[kind][0]
    formats = {dtype_name(dtype) for dtype in low_formats(io.load(path))}
    return Runtime.OPENVINO if "bfloat16" in formats else Runtime.ONNXRUNTIME
