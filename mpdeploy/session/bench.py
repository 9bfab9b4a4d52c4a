"""Models side by side: alternating rounds in processes of their own, so that a busy machine is unfair to none."""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from mpdeploy import __version__
from mpdeploy.errors import MpdeployError
from mpdeploy.files import sha256_of
from mpdeploy.graph import io
from mpdeploy.numerics.drift import DriftMeter
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.runner import Execution, Feed, dtype_name
from mpdeploy.runtime.twin import low_formats
from mpdeploy.session.bench_record import BatchTiming, BenchReport, BenchRow, Difference, Unusable
from mpdeploy.session.contest import BenchSettings, Contestant, Field, Track
from mpdeploy.session.opening import RUNTIMES_OF, Kind, Runtime, kind_of
from mpdeploy.session.worker import Worker
from mpdeploy.source.given import NOTHING, Given

Report = Callable[[float, str], None]

_LOADING = 0.2  # share of the progress bar
_FOR_NUMBERS = "emulation is there for its numbers: its speed says nothing of any deployment"


def contestants(paths: Sequence[Path], runtimes: Sequence[Runtime], given: Given = NOTHING) -> tuple[Contestant, ...]:
    """Return every file with every one of the runtimes that takes it, or with its usual one if none is named.

    Usual are ONNX Runtime, OpenVINO for BF16 graphs (which ONNX Runtime's CPU provider cannot run), TensorRT for
    engines, torch for torch models.  A file that cannot be read, or that none of the runtimes takes, stays among them:
    the benchmark says why it cannot run.
    """
    found = []
    for path in paths:
        try:
            takers = RUNTIMES_OF[kind_of(path)]
            chosen = [runtime for runtime in runtimes if runtime in takers] if runtimes else [_usual(path)]
        except MpdeployError:
            chosen = []
        found += [Contestant(path, runtime, given) for runtime in chosen or [*runtimes[:1], Runtime.AUTO][:1]]
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

    ``data`` gives the rows (those of its first feed), else inputs are made up; a contestant that takes other inputs
    than the first gets made-up ones of its own, and no drift.  ``machine`` describes the processor for the record.
    Whoever cannot run is left out, and the report says why.  Raises what the first raised if nobody can:
    ``UsageError``, ``ModelError``, ``DependencyError``.
    """
    entered = Field(settings, None if data is None else next(iter(data)))
    with contextlib.ExitStack() as stack:
        for index, entrant in enumerate(entrants):
            # One after the other: together they would disturb each other's cold start.
            progress(_LOADING * index / len(entrants), f"loading {entrant.name}")
            _enter(stack, entered, entrant)
        _take_turns(entered, progress)
        ran = [track for track in entered.tracks if track.samples]
        for track in ran:
            track.peak = track.worker.peak() if track.worker.alive else None
    if not ran:
        raise entered.faults[0][2]
    baseline = next((track for track in ran if _is_baseline(track.opened.execution)), None)
    return BenchReport(
        rows=tuple(_row(track, baseline) for track in ran),
        baseline=None if baseline is None else baseline.contestant.name,
        machine=machine,
        threads=settings.threads,
        rounds=settings.rounds,
        data="made-up inputs" if data is None else data.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        tool=f"mpdeploy {__version__}",
        unusable=tuple(_unusable(*fault) for fault in entered.faults),
    )


def _enter(stack: contextlib.ExitStack, entered: Field, entrant: Contestant) -> None:
    """Start a contestant and let it run once, with the smallest batch size that it takes."""
    try:
        settings = entered.settings
        worker = Worker(entrant.path, entrant.runtime, settings.threads, entrant.given, settings.timeout)
        stack.enter_context(worker)
        opened = worker.opened()
    except MpdeployError as fault:
        entered.faults.append((entrant, None, fault))
        return
    track: Track | None = None
    for batch in sorted(entered.batches_for(opened.inputs)):
        try:
            feed = entered.feed(opened.inputs, batch)
            first = worker.first(feed) if track is None else track.first
        except MpdeployError as fault:
            entered.faults.append((entrant, batch, fault))
            if not worker.alive:
                return
            continue
        track = track or Track(entrant, worker, opened, {}, first, batch, {})
        track.feeds[batch], track.samples[batch] = feed, []
    if track is not None:
        entered.tracks.append(track)


def _take_turns(entered: Field, progress: Report) -> None:
    settings, tracks = entered.settings, entered.tracks
    total = len(entered.batches) * (settings.rounds + 1)
    done = 0
    for batch in entered.batches:
        for number in range(settings.rounds + 1):
            what = f"batch {batch}, round {number}" if number else f"batch {batch}, warming up"
            progress(_LOADING + (1 - _LOADING) * done / total, what)
            # Every round begins with another contestant: nobody is always the first after a pause.
            turn = number % max(len(tracks), 1)
            for track in tracks[turn:] + tracks[:turn]:
                if batch in track.samples:
                    _turn(entered, track, batch, settings.seconds if number else settings.warmup, counts=number > 0)
            done += 1


def _turn(entered: Field, track: Track, batch: int, seconds: float, *, counts: bool) -> None:
    try:
        durations = track.worker.timed(track.feeds[batch], seconds)
    except MpdeployError as fault:
        entered.drop(track, batch, fault)
        return
    if counts:
        track.samples[batch] += durations


def _unusable(entrant: Contestant, batch: int | None, fault: MpdeployError) -> Unusable:
    return Unusable(entrant.name, str(entrant.path), batch, fault.what, fault.where, fault.remedy, fault.exit_code)


def _row(track: Track, baseline: Track | None) -> BenchRow:
    execution = track.opened.execution
    timings = []
    for batch in track.samples:
        latency = track.latency(batch)
        compared = baseline is not None and batch in baseline.samples
        ratio = baseline.latency(batch).median / latency.median if compared and baseline else None
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
        drift=() if baseline is None else _differences(baseline, track),
        caveat=_FOR_NUMBERS if track.contestant.runtime is Runtime.EMULATOR else execution.note,
    )


def _digest_of(files: Sequence[Path]) -> str:
    """Return a hash of the names and contents of a folder's files."""
    return hashlib.sha256("".join(f"{file.name} {sha256_of(file)}\n" for file in files).encode()).hexdigest()


def _differences(baseline: Track, candidate: Track) -> tuple[Difference, ...]:
    """Compare first results, if they are those of the same inputs."""
    if not _same(baseline.feeds.get(baseline.of, {}), candidate.feeds.get(candidate.of, {})):
        return ()
    found = []
    for name, expected in baseline.first.outputs.items():
        found_here = candidate.first.outputs.get(name)
        alike = found_here is not None and found_here.shape == expected.shape
        if alike and expected.size and expected.dtype.kind not in "OUS":
            meter = DriftMeter(name, Format.FP32)
            rows = expected.shape[0] if expected.ndim else 1
            meter.add(expected, candidate.first.outputs[name], rows, "benchmark")
            result = meter.result()
            found.append(Difference(name, result.norm_relative, result.cosine))
    return tuple(found)


def _same(one: Feed, other: Feed) -> bool:
    """Whether two feeds hold the same arrays, under whatever names."""
    return [id(array) for array in one.values()] == [id(array) for array in other.values()]


def _is_baseline(execution: Execution) -> bool:
    return execution.runtime == "onnxruntime" and execution.precision == "float32" and execution.evidence


def _usual(path: Path) -> Runtime:
    kind = kind_of(path)
    if kind is not Kind.ONNX:
        return RUNTIMES_OF[kind][0]
    formats = {dtype_name(dtype) for dtype in low_formats(io.load(path))}
    return Runtime.OPENVINO if "bfloat16" in formats else Runtime.ONNXRUNTIME
