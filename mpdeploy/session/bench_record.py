"""What a benchmark found, as a record."""

from dataclasses import dataclass

from mpdeploy.runtime.runner import Execution
from mpdeploy.runtime.timing import Latency


@dataclass(frozen=True)
class BatchTiming:
    """One batch size: latencies in seconds, samples per second at the median, and how many times as fast as the
    baseline (None without one)."""

    batch: int
    latency: Latency
    throughput: float
    ratio: float | None


@dataclass(frozen=True)
class Difference:
    """How far one output is from the baseline's on the benchmark's own inputs; None where it is not finite."""

    output: str
    norm_relative: float | None
    cosine: float | None


@dataclass(frozen=True)
class BenchRow:
    """One contestant: its file, what really ran, its times (seconds) and its peak memory (bytes of its process).

    ``cold_start_seconds`` runs from the start of its process to its first result and includes loading and the first
    run.  ``caveat`` says why its latency is no result; empty if it is one.
    """

    name: str
    path: str
    bytes: int
    sha256: str
    execution: Execution
    timings: tuple[BatchTiming, ...]
    load_seconds: float
    first_seconds: float
    cold_start_seconds: float
    peak_bytes: int | None
    drift: tuple[Difference, ...]
    caveat: str


@dataclass(frozen=True)
class Unusable:
    """A contestant, or one batch size of it, that could not be timed, and the fault that says why.

    ``batch`` is None if it could not run at all; ``exit_code`` is that of the fault.
    """

    name: str
    path: str
    batch: int | None
    what: str
    where: str
    remedy: str
    exit_code: int


@dataclass(frozen=True)
class BenchReport:
    """All contestants of one benchmark; ``unusable`` are those that have no row, or not every batch size in it.

    ``baseline`` names the row that ratios and differences refer to: the first FP32 model on ONNX Runtime, None if
    there is none.  ``threads`` 0 means one per core.  ``created`` is a UTC time in ISO 8601.
    """

    rows: tuple[BenchRow, ...]
    baseline: str | None
    machine: str
    threads: int
    rounds: int
    data: str
    created: str
    tool: str
    unusable: tuple[Unusable, ...] = ()
    schema: str = "mpdeploy.bench/1"
