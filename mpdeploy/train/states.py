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
PROCESS = "process-{}.pt"  # what a process of its own keeps beside the shards of all
_FIXED = ("recipe", "seed", "batch_size")


@dataclass(frozen=True)
class Configuration:
    """How a training is set up.

    One that goes on where another stopped must have the same recipe, seed and batch size.  The precision may be
    another, since a state is FP32 at every level, and so may the number of processes, how they share the model, and
    the number of epochs.
    """

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
    finite.  ``telemetry_bytes`` is how much of the telemetry file belongs to the steps so far.  ``parts`` is in how
    many parts a batch goes through the model, 0 for as many as the recipe says.  ``stopped`` tells that the recipe
    ended the training before its last epoch.
    """

    history: tuple[EpochRecord, ...] = ()
    batches: int = 0
    epoch_loss: float | None = 0.0
    epoch_skipped: int = 0
    applied: int = 0
    skipped: int = 0
    telemetry_bytes: int = 0
    parts: int = 0
    stopped: bool = False

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
    aside = _aside(folder)
    shutil.rmtree(aside, ignore_errors=True)
    folder.replace(aside)
    return aside


def take_back(folder: Path) -> None:
    """Put what was set aside in its place again, as a new training could not even begin."""
    shutil.rmtree(folder, ignore_errors=True)
    _aside(folder).replace(folder)


def _aside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.before")


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


def read_state(path: Path) -> tuple[StateRecord, dict[str, Any]]:
    """Return the record and the state in ``path``; raise ``UsageError`` if it is damaged or another kind of file."""
    content = load_tensors(path, "training state")
    if not isinstance(content, dict) or content.keys() != {"record", "state"}:
        raise UsageError("not a training state of mpdeploy", where=str(path), remedy="leave --resume out")
    return records.from_json(StateRecord, str(content["record"]).encode(), str(path)), content["state"]


def newest_record(folder: Path) -> StateRecord:
    """Return the record of the newest state in a folder; raise ``UsageError`` if there is none, or it is damaged."""
    found = newest_or_refuse(folder)
    return read_state(found / PROCESS.format(0) if found.is_dir() else found)[0]


def refuse_other(saved: StateRecord, wanted: Configuration, path: Path) -> None:
    """Raise ``UsageError`` that says why a training cannot go on from a saved state, if it cannot."""
    now, before = asdict(wanted), asdict(saved.configuration)
    for name in _FIXED:
        if now[name] != before[name]:
            raise UsageError(
                f"the interrupted training had {name} {_plain(before[name])}, this one has {_plain(now[name])}",
                where=str(path),
                remedy="give the same again, or leave --resume out to start afresh",
            )
    done = len(saved.position.history) + (saved.position.batches > 0)
    if done > wanted.epochs:
        raise UsageError(
            f"the interrupted training is in its epoch {done}, this one is to have {wanted.epochs}",
            where=str(path),
            remedy=f"give --epochs {done} or more",
        )


def differences(saved: Configuration, wanted: Configuration) -> tuple[str, ...]:
    """Return what a training that goes on has otherwise than before, each as in ``epochs 3, was 2``."""
    now, before = asdict(wanted), asdict(saved)
    return tuple(f"{name} {now[name]}, was {before[name]}" for name in now if now[name] != before[name])


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
