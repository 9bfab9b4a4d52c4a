"""The state that an interrupted training goes on from: `resume.pt` beside the checkpoint."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpdeploy import records
from mpdeploy.errors import UsageError
from mpdeploy.train.checkpoint import EpochRecord, load_tensors, save_tensors
from mpdeploy.train.loading import RecipeId


@dataclass(frozen=True)
class Configuration:
    """What must be equal for a training to go on where another one stopped."""

    recipe: RecipeId
    level: str
    seed: int
    epochs: int
    batch_size: int


@dataclass(frozen=True)
class Position:
    """How far the training has come: whole epochs with their records, and steps."""

    history: tuple[EpochRecord, ...] = ()
    steps_applied: int = 0
    steps_skipped: int = 0


@dataclass(frozen=True)
class _Record:
    configuration: Configuration
    position: Position
    schema: str = "mpdeploy.resume/1"


def save_state(path: Path, configuration: Configuration, position: Position, state: dict[str, Any]) -> None:
    """Write everything that going on needs to ``path``, atomically; loads with ``weights_only=True``."""
    record = records.to_json(_Record(configuration, position)).decode()
    save_tensors({"record": record, "state": state}, path)


def load_state(path: Path, configuration: Configuration) -> tuple[Position, dict[str, Any]]:
    """Return the position and state in ``path``.

    Raises ``UsageError`` if there is none, it is damaged, or it belongs to another configuration.
    """
    if not path.exists():
        raise UsageError(
            "there is no interrupted training to resume", where=str(path.parent), remedy="leave --resume out"
        )
    content = load_tensors(path, "training state")
    if not isinstance(content, dict) or content.keys() != {"record", "state"}:
        raise UsageError("not a training state of mpdeploy", where=str(path), remedy="leave --resume out")
    record = records.from_json(_Record, str(content["record"]).encode(), str(path))
    saved, wanted = asdict(record.configuration), asdict(configuration)
    for name, value in saved.items():
        if wanted[name] != value:
            raise UsageError(
                f"the interrupted training had {name} {_plain(value)}, this one has {_plain(wanted[name])}",
                where=str(path),
                remedy="give the same again, or leave --resume out to start afresh",
            )
    return record.position, content["state"]


def _plain(value: object) -> object:
    return f"{value['file']} ({value['sha256'][:12]}…)" if isinstance(value, dict) else value
