"""States of a training whose parameters are spread over processes: a folder that each process writes its part of."""

import contextlib
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, distribute_tensor

from mpdeploy import records
from mpdeploy.train.checkpoint import save_tensors
from mpdeploy.train.shard_reader import SafeReader, fill
from mpdeploy.train.states import (
    PROCESS,
    STATES,
    Configuration,
    Position,
    StateRecord,
    newest_or_refuse,
    read_state,
    refuse_other,
    remove_old,
    set_aside,
    state_name,
    take_back,
)
from mpdeploy.train.world import World

_MARK = "\0shard"  # stands in a state's tree, with a path and a shape, for a tensor that is in shards


class Shards:
    """States as folders: sharded tensors by torch.distributed.checkpoint, all else in one file for each process."""

    def __init__(self, folder: Path, configuration: Configuration, keep: int, world: World) -> None:
        self._folder, self._configuration, self._keep, self._world = folder / STATES, configuration, keep, world

    def newest(self) -> Path:
        """Return the newest state; raise ``UsageError`` if there is none."""
        return newest_or_refuse(self._folder)

    def load(self, path: Path, like: dict[str, Any]) -> tuple[StateRecord, dict[str, Any]]:
        """Return a saved record and state; ``like`` tells how the tensors are spread.

        The state may be of another number of processes, or of one process alone.
        """
        spread: dict[tuple[int, ...], DTensor] = {}
        _replace(like, "", lambda where, tensor: spread.setdefault(tuple(tensor.shape), tensor))
        if not path.is_dir():
            record, tree = read_state(path)
            refuse_other(record, self._configuration, path)
            return record, _spread(tree, like, spread)
        record, tree = _read_part(path, self._world.rank)
        refuse_other(record, self._configuration, path)
        tensors = {where: torch.zeros_like(spread[shape]) for where, shape in _marks(tree).items()}
        with _quiet():
            load(tensors, storage_reader=SafeReader(path))
        return record, _filled(tree, tensors)

    def save(self, position: Position, state: dict[str, Any]) -> None:
        """Save a state, then remove those that are too old."""
        name = state_name(position.steps)
        scratch = self._folder / f".{name}.part"
        if self._world.leads:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
        self._world.wait()
        tensors: dict[str, DTensor] = {}

        def take_out(where: str, tensor: DTensor) -> tuple[str, str, list[int]]:
            tensors[where] = tensor
            return (_MARK, where, list(tensor.shape))

        tree = _replace(state, "", take_out)
        record = records.to_json(StateRecord(self._configuration, position)).decode()
        save_tensors({"record": record, "state": tree}, scratch / PROCESS.format(self._world.rank))
        with _quiet():
            save(tensors, storage_writer=FileSystemWriter(scratch))
        self._world.wait()
        if self._world.leads:
            shutil.rmtree(self._folder / name, ignore_errors=True)
            scratch.replace(self._folder / name)
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


def read_whole(path: Path) -> tuple[StateRecord, dict[str, Any]]:
    """Return the record and the state of a folder with all shards put together, in one process.

    Nothing in the folder is executed.  Raises ``UsageError`` if it is no state of ours.
    """
    record, tree = _read_part(path, 0)
    tensors = {where: torch.zeros(shape) for where, shape in _marks(tree).items()}
    fill(tensors, SafeReader(path), path)
    return record, _filled(tree, tensors)


def _read_part(path: Path, rank: int) -> tuple[StateRecord, dict[str, Any]]:
    own = path / PROCESS.format(rank)
    return read_state(own if own.is_file() else path / PROCESS.format(0))


def _spread(tree: Any, like: Any, spread: dict[tuple[int, ...], DTensor]) -> Any:
    """Return the tree with its whole tensors spread as in ``like``; where that lacks them, as others of the shape."""
    if isinstance(tree, torch.Tensor):
        model = like if isinstance(like, torch.Tensor) else spread.get(tuple(tree.shape))
        if not isinstance(model, DTensor):
            return tree
        return distribute_tensor(tree.to(model.device), model.device_mesh, model.placements)
    if isinstance(tree, dict):
        known = like if isinstance(like, dict) else {}
        return {key: _spread(value, known.get(key), spread) for key, value in tree.items()}
    if isinstance(tree, list):
        known_items = like if isinstance(like, list) and len(like) == len(tree) else [None] * len(tree)
        return [_spread(value, other, spread) for value, other in zip(tree, known_items, strict=True)]
    return tree


def _replace(tree: Any, where: str, by: Callable[[str, DTensor], object]) -> Any:
    """Return the tree with ``by(where, tensor)`` in place of each sharded tensor."""
    if isinstance(tree, DTensor):
        return by(where, tree)
    if isinstance(tree, dict):
        return {key: _replace(value, f"{where}/{key}", by) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_replace(value, f"{where}/{place}", by) for place, value in enumerate(tree)]
    return tree


def _is_mark(tree: Any) -> bool:
    return isinstance(tree, tuple) and len(tree) == 3 and tree[0] == _MARK


def _marks(tree: Any) -> dict[str, tuple[int, ...]]:
    if _is_mark(tree):
        return {tree[1]: tuple(tree[2])}
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return {where: shape for part in parts for where, shape in _marks(part).items()}


def _filled(tree: Any, tensors: dict[str, Any]) -> Any:
    if _is_mark(tree):
        return tensors[tree[1]]
    if isinstance(tree, dict):
        return {key: _filled(value, tensors) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_filled(value, tensors) for value in tree]
    return tree


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch.distributed.checkpoint warns of its own use of deprecated names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
