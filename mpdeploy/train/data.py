"""Examples to learn from and to check with, and the files of feeds that later steps read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from mpdeploy.errors import UsageError
from mpdeploy.files import atomic_folder
from mpdeploy.train.specs import TensorSpec

LABELS, TARGETS = "labels", "targets"  # the keys of right answers in files of feeds: classes, and all others


@dataclass(frozen=True)
class Batch:
    """Some examples: the model's inputs in order, and their labels; each tensor's first axis counts them.

    ``labels`` are the right answers in the form that the recipe's loss takes: classes, numbers, images.
    """

    inputs: tuple[torch.Tensor, ...]
    labels: torch.Tensor

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device."""
        return Batch(tuple(value.to(device) for value in self.inputs), self.labels.to(device))

    def parts(self, count: int) -> "list[Batch]":
        """Return the batch in ``count`` parts of nearly equal size, fewer if it has fewer examples."""
        columns = [torch.tensor_split(value, min(count, len(self.labels))) for value in (*self.inputs, self.labels)]
        return [Batch(tuple(inputs), labels) for *inputs, labels in zip(*columns, strict=True)]


class Examples(Protocol):
    """A set of examples that knows its size and makes a batch of any of them."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the examples at ``indices``, in that order."""
        ...


@dataclass(frozen=True)
class Arrays:
    """Examples that fit in memory: an array for each input of the model, and one of labels.

    Raises ``UsageError`` if they do not all hold the same number of examples.
    """

    inputs: tuple[np.ndarray[Any, Any], ...]
    labels: np.ndarray[Any, Any]

    def __post_init__(self) -> None:
        if not isinstance(self.inputs, (tuple, list)):
            raise UsageError("Arrays takes an array for each input", remedy="write Arrays((images,), labels)")
        for array in (*self.inputs, self.labels):
            if not isinstance(array, np.ndarray):
                raise UsageError(
                    f"Arrays takes numpy arrays, not a {type(array).__name__}",
                    remedy="convert it with numpy.asarray()",
                )
        if {len(array) for array in self.inputs} != {len(self.labels)}:
            counts = [len(array) for array in self.inputs]
            raise UsageError(f"{counts} examples in the inputs do not go with {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return the examples at ``indices``, in that order."""
        chosen = np.asarray(indices)
        inputs = tuple(torch.from_numpy(array[chosen]) for array in self.inputs)
        return Batch(inputs, torch.from_numpy(self.labels[chosen]))


def shuffled(count: int, size: int, *, seed: int, epoch: int) -> list[list[int]]:
    """Return the batches of an epoch as indices, shuffled in a way that only seed and epoch decide.

    A last batch of fewer than ``size`` is dropped unless it is the only one.
    """
    order = np.random.default_rng((seed, epoch)).permutation(count).tolist()
    whole = max(count // size, 1)
    return [order[i * size : (i + 1) * size] for i in range(whole)]


def in_order(count: int, size: int) -> list[range]:
    """Return the indices of ``count`` examples in order, in batches of ``size``; the last may be smaller."""
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def write_feeds(folder: Path, specs: Sequence[TensorSpec], examples: Examples, *, size: int, limit: int) -> int:
    """Write up to ``limit`` examples as feeds for calibrating and verifying; return how many.

    Each file ``0000.npz`` … holds one feed of ``size`` examples: an array for each input under its name, and the
    right answers, which are no input: whole numbers, which stand for classes, under ``labels``, all others under
    ``targets``.  Where the model's first axis is fixed, a smaller last feed
    is left out.  The folder appears whole, in place of what was there.
    """
    fixed = any(isinstance(spec.shape[0], int) for spec in specs if spec.shape)
    written = 0
    with atomic_folder(folder) as scratch:
        for number, batch in enumerate(_batches(examples, size, min(limit, len(examples)))):
            if fixed and number and len(batch.labels) < size:
                break
            named = {spec.name: _storable(value) for spec, value in zip(specs, batch.inputs, strict=True)}
            answers = LABELS if _are_classes(batch.labels) else TARGETS
            named[answers] = _storable(batch.labels)
            np.savez(scratch / f"{number:04}.npz", allow_pickle=False, **named)
            written += len(batch.labels)
    return written


def _are_classes(labels: torch.Tensor) -> bool:
    return not (labels.is_floating_point() or labels.is_complex())


def _storable(value: torch.Tensor) -> np.ndarray[Any, Any]:
    """The tensor as an array of a type that numpy's files know."""
    plain = value.detach().cpu()
    array: np.ndarray[Any, Any] = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    return array


def _batches(examples: Examples, size: int, count: int) -> Iterator[Batch]:
    for indices in in_order(count, size):
        yield examples.batch(indices)
