"""How long runs take: samples, and the numbers that describe them."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_FEWEST = 3  # runs of one round, however slow they are


@dataclass(frozen=True)
class Latency:
    """The durations of ``runs`` runs, in seconds; ``p95`` and ``p99`` are durations that really occurred."""

    runs: int
    median: float
    mean: float
    p95: float
    p99: float
    low: float


def summarise(seconds: Sequence[float]) -> Latency:
    """Return what describes one or more durations."""
    ordered = sorted(seconds)
    return Latency(
        runs=len(ordered),
        median=statistics.median(ordered),
        mean=statistics.fmean(ordered),
        p95=_rank(ordered, 0.95),
        p99=_rank(ordered, 0.99),
        low=ordered[0],
    )


def time_runs(run: Callable[[], object], seconds: float) -> list[float]:
    """Call ``run`` for about ``seconds``, at least three times; return the duration of each call in seconds."""
    durations: list[float] = []
    end = time.perf_counter() + seconds
    while len(durations) < _FEWEST or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        durations.append(time.perf_counter() - start)
    return durations


def _rank(ordered: Sequence[float], share: float) -> float:
    """The smallest duration that at least that share of the runs did not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
