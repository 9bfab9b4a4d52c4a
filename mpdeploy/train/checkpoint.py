"""The checkpoint that training hands over: `model.pt`, FP32 weights and the record of where they come from."""

import pickle
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from mpdeploy import records
from mpdeploy.amp.dtypes import is_low
from mpdeploy.archive import check_archive, is_archive
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.files import atomic_path, readable_file
from mpdeploy.numerics.telemetry import ModuleRange
from mpdeploy.numerics.training import EpochRecord as EpochRecord
from mpdeploy.train.loading import RecipeId
from mpdeploy.train.specs import TensorSpec


@dataclass(frozen=True)
class CheckpointRecord:
    """Where a checkpoint comes from.

    ``metric`` is the value on held-out examples of the very weights in the checkpoint, evaluated in FP32,
    ``metrics`` are all of them by name, where the recipe has several, and ``ranges`` are what the modules' outputs
    reached meanwhile.  ``ema_decay`` tells that the weights are an
    average over the training, ``fp32_modules`` which modules computed in FP32 whatever the level.
    """

    recipe: RecipeId
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    level: str
    seed: int
    epochs: int
    metric_name: str
    metric: float | None
    steps_applied: int
    steps_skipped: int
    history: tuple[EpochRecord, ...]
    ranges: tuple[ModuleRange, ...]
    ema_decay: float | None
    mpdeploy_version: str
    torch_version: str
    metrics: dict[str, float | None] = field(default_factory=dict)
    fp32_modules: tuple[str, ...] = ()
    schema: str = "mpdeploy.checkpoint/1"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory: FP32 weights by name, a few held-out examples by input name, and the record."""

    weights: dict[str, torch.Tensor]
    examples: dict[str, torch.Tensor]
    record: CheckpointRecord


def save_checkpoint(checkpoint: Checkpoint, path: Path) -> None:
    """Write the checkpoint to ``path`` atomically; ``torch.load(path, weights_only=True)`` reads it."""
    content = {
        "record": records.to_json(checkpoint.record).decode(),
        "weights": checkpoint.weights,
        "examples": checkpoint.examples,
    }
    save_tensors(content, path)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint of ours; nothing in the file is executed.

    Raises ``UsageError`` if the file is missing, damaged or not a checkpoint of mpdeploy, ``ModelError`` if it
    asks for Python objects beyond tensors and plain data.
    """
    content = load_tensors(path, "checkpoint")
    if not isinstance(content, dict) or content.keys() != {"record", "weights", "examples"}:
        raise UsageError(
            "not a checkpoint of mpdeploy", where=str(path), remedy="make one with `mpdeploy train RECIPE`"
        )
    record = records.from_json(CheckpointRecord, str(content["record"]).encode(), str(path))
    weights, examples = content["weights"], content["examples"]
    for tensors in (weights, examples):
        if not isinstance(tensors, dict) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
            raise UsageError("the checkpoint holds no tensors where they belong", where=str(path))
    for name, tensor in weights.items():
        if is_low(tensor):
            raise UsageError(
                f"the weight `{name}` is {tensor.dtype}, a checkpoint of mpdeploy holds no less than FP32",
                where=str(path),
            )
    return Checkpoint(weights, examples, record)


def save_tensors(content: object, path: Path) -> None:
    """Write ``content``, tensors and plain data, as a torch file, atomically; equal contents give equal bytes."""
    # To a stream, because torch writes the name of a path into the file.
    with atomic_path(path) as scratch, scratch.open("wb", buffering=0) as stream:
        watched = _Watched(stream)
        try:
            torch.save(content, watched)  # type: ignore[arg-type]
        except Exception:
            if watched.fault is not None:
                raise watched.fault from None
            raise


class _Watched:
    """A stream to write to that remembers what the system said when it took no more."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.fault: OSError | None = None

    def write(self, content: Any) -> int:
        """Write all of the content, or keep the fault and raise it."""
        left = memoryview(content).cast("B")
        try:
            while left:
                left = left[self._stream.write(left) :]
        except OSError as error:
            self.fault = self.fault or error
            raise
        return memoryview(content).nbytes

    def flush(self) -> None:
        """Nothing is held back."""


def load_tensors(path: Path, what: str) -> object:
    """Return what the torch file ``path`` holds, as far as it is tensors and plain data; execute nothing.

    Raises as ``load_checkpoint`` does.
    """
    readable_file(path, what)
    if is_archive(path):
        check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of foreign kinds of file; they are refused below
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        wanted = _wanted_globals(path) or sorted(set(re.findall(r"GLOBAL (\w[\w.]+)", str(error))))
        if not wanted:
            raise UsageError(f"the {what} is damaged or not a torch file", where=str(path)) from error
        raise ModelError(
            f"the {what} asks for Python objects that could run code: {', '.join(wanted)}",
            where=str(path),
            remedy="save its state_dict() alone",
        ) from error
    except Exception as error:
        # A damaged file may fail anywhere in torch's reader, in any way.
        raise UsageError(f"the {what} is damaged or not a torch file", where=str(path)) from error


def _wanted_globals(path: Path) -> list[str]:
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    except Exception:  # noqa: BLE001 - a damaged file may fail anywhere in torch's scanner; then it wants nothing
        return []
