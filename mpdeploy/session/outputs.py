"""Run a model over data: a record of what ran and what came out, and the outputs as .npz files."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpdeploy.errors import UsageError
from mpdeploy.files import atomic_folder, atomic_path
from mpdeploy.runtime.apart import require_apart
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.fit import fit
from mpdeploy.runtime.npz import save_npz
from mpdeploy.runtime.runner import Array, Execution, Runner

Store = Callable[[str, dict[str, Array]], None]


@dataclass(frozen=True)
class OutputFacts:
    """One output over all feeds: type, the shape in the first feed, range and mean of its finite elements.

    ``nan`` and ``inf`` count elements that are not finite; range and mean are None if none is.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float | None
    high: float | None
    mean: float | None
    nan: int
    inf: int


@dataclass(frozen=True)
class RunReport:
    """What ran on how many feeds, what came out, and where it was written (empty if nowhere)."""

    model: str
    execution: Execution
    feeds: int
    outputs: tuple[OutputFacts, ...]
    written: str
    notes: tuple[str, ...] = ()
    schema: str = "mpdeploy.run/1"


def run_over(runner: Runner, model: str, feeds: Feeds, output: Path | None) -> RunReport:
    """Run every feed and return the report.

    ``output`` ending in ``.npz`` takes the outputs of a single feed, any other name becomes a folder with one
    ``.npz`` for each feed; either appears whole or not at all.  Raises ``UsageError`` for data that do not fit, and
    for outputs that would take the place of the model, the data, or a folder with other things in it.
    """
    if output is not None:
        files, folders = ((output,), ()) if output.suffix == ".npz" else ((), (output,))
        require_apart(files, folders=folders, models=(model,), others=(feeds,))
    tallies: dict[str, _Tally] = {}
    notes: dict[str, None] = {}
    count = 0
    with _store(output) as store:
        for where, feed in feeds.labelled():
            fitted = fit(feed, runner.inputs, where)
            notes.update(dict.fromkeys(fitted.notes))
            results = runner.run(fitted.feed)
            for name, array in results.items():
                tallies.setdefault(name, _Tally(name, array)).add(array)
            store(where, results)
            count += 1
    facts = tuple(tally.facts() for tally in tallies.values())
    if output is not None and any(fact.dtype == "bfloat16" for fact in facts):
        notes["BF16 outputs are stored as their bits: read them with array.view(ml_dtypes.bfloat16)"] = None
    return RunReport(model, runner.describe(), count, facts, str(output) if output else "", tuple(notes))


@contextlib.contextmanager
def _store(output: Path | None) -> Iterator[Store]:
    if output is None:
        yield lambda where, results: None
    elif output.suffix == ".npz":
        with atomic_path(output) as scratch:

            def store_one(where: str, results: dict[str, Array]) -> None:
                if scratch.exists():
                    raise UsageError(
                        "the data holds several feeds, their outputs do not fit into one file",
                        where=str(output),
                        remedy="name a folder: leave .npz out",
                    )
                save_npz(scratch, results)

            yield store_one
    else:
        _require_replaceable(output)
        with atomic_folder(output) as folder:

            def store_each(where: str, results: dict[str, Array]) -> None:
                number = sum(1 for _ in folder.iterdir())
                stem = Path(where).stem if where.endswith(".npz") else f"{number:06d}"
                save_npz(folder / f"{stem}.npz", results)

            yield store_each


def _require_replaceable(folder: Path) -> None:
    """Refuse to replace a folder that holds anything but what an earlier run wrote."""
    if folder.is_dir():
        strange = next((path for path in sorted(folder.iterdir()) if path.suffix != ".npz" or not path.is_file()), None)
        if strange is not None:
            raise UsageError(
                f"the folder would be replaced, and holds more than outputs: {strange.name}",
                where=str(folder),
                remedy="name a new folder",
            )


class _Tally:
    def __init__(self, name: str, first: Array) -> None:
        self._name, self._dtype, self._shape = name, first.dtype.name, tuple(first.shape)
        self._low, self._high = np.inf, -np.inf
        self._sum, self._finite, self._nan, self._inf = 0.0, 0, 0, 0

    def add(self, array: Array) -> None:
        if array.dtype.kind in "OUS":
            return
        wide = array.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        self._nan += int(np.isnan(wide).sum())
        self._inf += int(np.isinf(wide).sum())
        if finite.size:
            self._low, self._high = min(self._low, float(finite.min())), max(self._high, float(finite.max()))
            self._sum += float(finite.sum())
            self._finite += finite.size

    def facts(self) -> OutputFacts:
        some = self._finite > 0
        return OutputFacts(
            self._name,
            self._dtype,
            self._shape,
            self._low if some else None,
            self._high if some else None,
            self._sum / self._finite if some else None,
            self._nan,
            self._inf,
        )
