"""The same model built several times: are the engines equal, and if not, how far apart are their results?

TensorRT chooses kernels by measuring them, so equal commands may give unequal engines; one build's drift is then
a sample, not the answer.  TensorRT for RTX measures nothing; built each in a process of its own (see ``isolated``),
its plans are equal byte for byte.
"""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from mpdeploy.files import sha256_of
from mpdeploy.runtime.runner import Feed

Run = Callable[[Path], Feed]


@dataclass(frozen=True)
class Spread:
    """``builds`` builds gave ``distinct`` different files.

    ``worst`` is the largest norm-relative difference between the results of two of them: 0 for equal files, None if
    it was not measured (that takes the GPU and data) or is not finite.
    """

    builds: int
    distinct: int
    worst: float | None


def measure_spread(first: Path, again: Callable[[Path], None], builds: int, run: Run | None) -> Spread:
    """Return the spread of ``builds`` engines: ``first``, and what ``again`` writes to the paths it is given.

    ``run`` returns the results of an engine's file; it is asked only of files that differ.
    """
    with tempfile.TemporaryDirectory() as folder:
        engines = [Path(folder) / f"{number}.engine" for number in range(builds)]
        shutil.copyfile(first, engines[0])
        for engine in engines[1:]:
            again(engine)
        distinct = {sha256_of(engine): engine for engine in engines}
        if len(distinct) == 1:
            return Spread(builds, 1, 0.0)
        worst = None if run is None else worst_difference([run(engine) for engine in distinct.values()])
        return Spread(builds, len(distinct), worst)


def worst_difference(results: Sequence[Feed]) -> float | None:
    """Return the largest ||a - b|| / ||a|| over all pairs of results and their outputs; None if not finite."""
    worst = 0.0
    for first, second in combinations(results, 2):
        for name in first:
            a, b = (np.asarray(r[name]).astype(np.float64).ravel() for r in (first, second))
            if np.array_equal(a, b, equal_nan=True):
                continue
            size = np.linalg.norm(a)
            difference = float(np.linalg.norm(a - b) / size) if size else np.inf
            if not np.isfinite(difference):
                return None
            worst = max(worst, difference)
    return worst
