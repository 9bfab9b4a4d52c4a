"""The states that an interrupted training goes on from: the newest few, one file for each."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpdeploy import records
from mpdeploy.errors import UsageError
from mpdeploy.train.checkpoint import EpochRecord, load_tensors, save_tensors
from mpdeploy.train.loading import RecipeId

STATES = "states"


@dataclass(frozen=True)
class Configuration:
    """What must be equal for a training to go on where another one stopped."""

    recipe: RecipeId
    precision: str
    seed: int
    epochs: int
    batch_size: int
    processes: int
    sharding: str


@dataclass(frozen=True)
class Position:
    """How far the training has come: whole epochs with their records, batches of the next one, steps in all.

    ``epoch_loss`` holds the losses of the epoch under way: their sum over applied steps, None once it is not
    finite.  ``telemetry_bytes`` is how much of the telemetry file belongs to the steps so far.
    """

    history: tuple[EpochRecord, ...] = ()
    batches: int = 0
    epoch_loss: float | None = 0.0
    epoch_skipped: int = 0
    applied: int = 0
    skipped: int = 0
    telemetry_bytes: int = 0

    @property
    def steps(self) -> int:
        """All steps, applied or skipped."""
        return self.applied + self.skipped


@dataclass(frozen=True)
class StateRecord:
    """What stands beside the tensors of a state."""

    configuration: Configuration
    position: Position
    schema: str = "mpdeploy.state/1"


def state_name(steps: int) -> str:
    """Return the bare name of the state after so many steps; names sort by age."""
    return f"{steps:010}"


def newest(folder: Path) -> Path | None:
    """Return the newest whole state in the folder, if there is one; files and folders being written do not count."""
    found = sorted(path for path in folder.glob("[0-9]*") if path.stem.isdecimal())
    return found[-1] if found else None


def newest_or_refuse(folder: Path) -> Path:
    """Return the newest state in a folder; raise ``UsageError`` if there is none."""
    found = newest(folder)
    if found is None:
        raise UsageError(
            "there is no interrupted training to resume", where=str(folder.parent), remedy="leave --resume out"
        )
    return found


def remove_old(folder: Path, keep: int) -> None:
    """Remove all but the newest ``keep`` states of a folder, and what a killed process left half-written there."""
    for path in folder.glob(".*.part"):
        _remove(path)
    states = sorted(path for path in folder.glob("[0-9]*") if path.stem.isdecimal())
    for path in states[: max(len(states) - keep, 0)]:
        _remove(path)


def set_aside(folder: Path, steps: int) -> Path | None:
    """Make room for the states of a new training; return where those of an interrupted one are now, if there was one.

    A training is interrupted if it has less than ``steps`` behind it.  What was set aside before is removed, and so
    are the states of a training that was finished.
    """
    found = newest(folder)
    if found is None or found.name in (state_name(0), f"{state_name(0)}.pt") or int(found.stem) >= steps:
        remove_old(folder, 0)
        return None
    aside = folder.with_name(f"{folder.name}.before")
    shutil.rmtree(aside, ignore_errors=True)
    folder.replace(aside)
    return aside


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def save_state(folder: Path, record: StateRecord, state: dict[str, Any]) -> Path:
    """Write everything that going on needs, atomically; ``torch.load(…, weights_only=True)`` reads it."""
    path = folder / f"{state_name(record.position.steps)}.pt"
    save_tensors({"record": records.to_json(record).decode(), "state": state}, path)
    return path


def load_state(path: Path, configuration: Configuration) -> tuple[Position, dict[str, Any]]:
    """Return the position and the state in ``path``.

    Raises ``UsageError`` if it is damaged, or belongs to another configuration.
    """
    record, state = read_state(path)
    refuse_other(record.configuration, configuration, path)
    return record.position, state


def read_state(path: Path) -> tuple[StateRecord, dict[str, Any]]:
    """Return the record and the state in ``path``; raise ``UsageError`` if it is damaged or another kind of file."""
    content = load_tensors(path, "training state")
    if not isinstance(content, dict) or content.keys() != {"record", "state"}:
        raise UsageError("not a training state of mpdeploy", where=str(path), remedy="leave --resume out")
    return records.from_json(StateRecord, str(content["record"]).encode(), str(path)), content["state"]


def refuse_other(saved: Configuration, wanted: Configuration, path: Path) -> None:
    """Raise ``UsageError`` that names what differs, if something does."""
    now = asdict(wanted)
    for name, value in asdict(saved).items():
        if now[name] != value:
            raise UsageError(
                f"the interrupted training had {name} {_plain(value)}, this one has {_plain(now[name])}",
                where=str(path),
                remedy="give the same again, or leave --resume out to start afresh",
            )


@contextlib.contextmanager
def taken_over(path: Path) -> Iterator[None]:
    """Turn what goes wrong as the parts of the state in ``path`` are taken over into a ``UsageError`` about it."""
    try:
        yield
    except UsageError as error:
        error.where = error.where or str(path)
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UsageError(
            f"the training state is damaged: {type(error).__name__}: {str(error)[:200]}",
            where=str(path),
            remedy="leave --resume out to start afresh",
        ) from error


def _plain(value: object) -> object:
    return f"{value['file']} ({value['sha256'][:12]}…)" if isinstance(value, dict) else value
