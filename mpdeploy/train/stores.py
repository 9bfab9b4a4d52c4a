"""Where the states of a training are kept: in one file each, or in shards."""

from pathlib import Path
from typing import Any, Protocol

from mpdeploy.train.states import (
    STATES,
    Configuration,
    Position,
    StateRecord,
    newest_or_refuse,
    read_state,
    refuse_other,
    remove_old,
    save_state,
    set_aside,
    take_back,
)
from mpdeploy.train.world import Sharding, World


class Store(Protocol):
    """Keeps the newest states of one training; all processes call its methods together."""

    def newest(self) -> Path:
        """Return the newest state; raise ``UsageError`` if there is none."""
        ...

    def load(self, path: Path, like: dict[str, Any]) -> tuple[StateRecord, dict[str, Any]]:
        """Return a saved record and state; ``like`` is a state of the same form, which may be written to."""
        ...

    def save(self, position: Position, state: dict[str, Any]) -> None:
        """Save a state, then remove those that are too old."""
        ...

    def begin(self, steps: int) -> Path | None:
        """Make room for a new training of so many steps; return where the states of an interrupted one are now."""
        ...

    def give_back(self) -> None:
        """Put the states of the interrupted training in their place again."""
        ...


class Files:
    """States in one file each, written by the leading process."""

    def __init__(self, folder: Path, configuration: Configuration, keep: int, world: World) -> None:
        self._folder, self._configuration, self._keep, self._world = folder / STATES, configuration, keep, world

    def newest(self) -> Path:
        """Return the newest state; raise ``UsageError`` if there is none."""
        return newest_or_refuse(self._folder)

    def load(self, path: Path, like: dict[str, Any]) -> tuple[StateRecord, dict[str, Any]]:
        """Return a saved record and state, put together if it is in shards."""
        if path.is_dir():
            from mpdeploy.train.shards import read_whole  # imports much of torch.distributed

            record, state = read_whole(path)
        else:
            record, state = read_state(path)
        refuse_other(record, self._configuration, path)
        return record, state

    def save(self, position: Position, state: dict[str, Any]) -> None:
        """Save a state, then remove those that are too old."""
        if self._world.leads:
            save_state(self._folder, StateRecord(self._configuration, position), state)
            remove_old(self._folder, self._keep)
        self._world.wait()

    def begin(self, steps: int) -> Path | None:
        """Make room for a new training of so many steps; return where the states of an interrupted one are now."""
        aside = set_aside(self._folder, steps) if self._world.leads else None
        self._world.wait()
        return aside

    def give_back(self) -> None:
        """Put the states of the interrupted training in their place again."""
        if self._world.leads:
            take_back(self._folder)


def store_for(folder: Path, configuration: Configuration, keep: int, world: World, sharding: Sharding) -> Store:
    """Return the store that fits how the model is spread."""
    if world.size > 1 and sharding is Sharding.FSDP:
        from mpdeploy.train.shards import Shards  # imports much of torch.distributed

        return Shards(folder, configuration, keep, world)
    return Files(folder, configuration, keep, world)
