"""Examples to learn from and to check with, in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from mpdeploy.errors import UsageError
from mpdeploy.train.world import World

LABELS, TARGETS = "labels", "targets"  # the keys of right answers in files of feeds: classes, and all others


@dataclass(frozen=True)
class Batch:
    """Some examples: the model's inputs in order, and their labels; each tensor's first axis counts them.

    ``labels`` are the right answers in the form that the recipe's loss takes: classes, numbers, images.
    """

    inputs: tuple[torch.Tensor, ...]
    labels: torch.Tensor

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; a copy from pinned memory goes on while others work."""
        move = [value.to(device, non_blocking=value.is_pinned()) for value in (*self.inputs, self.labels)]
        return Batch(tuple(move[:-1]), move[-1])

    def pin_memory(self) -> "Batch":
        """Return the batch in memory that a GPU copies from by itself."""
        return Batch(tuple(value.pin_memory() for value in self.inputs), self.labels.pin_memory())

    def first(self, count: int) -> "Batch":
        """Return the first ``count`` examples."""
        return Batch(tuple(value[:count] for value in self.inputs), self.labels[:count])

    def after(self, count: int) -> "Batch":
        """Return the examples after the first ``count``."""
        return Batch(tuple(value[count:] for value in self.inputs), self.labels[count:])

    def and_then(self, other: "Batch") -> "Batch":
        """Return the examples of this batch and then those of another."""
        if not len(self.labels):
            return other
        inputs = tuple(torch.cat(pair) for pair in zip(self.inputs, other.inputs, strict=True))
        return Batch(inputs, torch.cat((self.labels, other.labels)))

    def share(self, world: World) -> "Batch":
        """Return the examples that fall to this process."""
        mine = world.share(range(len(self.labels)))
        every = slice(mine.start, mine.stop, mine.step)
        return Batch(tuple(value[every] for value in self.inputs), self.labels[every])

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


class Source(Protocol):
    """Where batches come from: to learn from, epoch by epoch, and in order, to measure with and to hand over."""

    def steps(self) -> int:
        """Return how many batches an epoch has."""
        ...

    def epoch(self, epoch: int, first: int, world: World) -> Iterator[Batch]:
        """Yield this process's share of the batches of an epoch, from the batch ``first`` on.

        Which examples they hold follows from the seed and the epoch alone, whatever was drawn before.
        """
        ...

    def in_order(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """Yield the examples, or the first ``limit`` of them, always the same, in batches of ``size``."""
        ...

    def peek(self, count: int) -> Batch:
        """Return the first ``count`` examples, or fewer if there are fewer, without starting any process."""
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


@dataclass(frozen=True)
class Indexed:
    """Examples that any index finds, as a source."""

    examples: Examples
    batch_size: int = 1
    seed: int = 0

    def steps(self) -> int:
        """Return how many batches an epoch has."""
        return max(len(self.examples) // self.batch_size, 1)

    def epoch(self, epoch: int, first: int, world: World) -> Iterator[Batch]:
        """Yield this process's share of the batches of an epoch, from the batch ``first`` on."""
        for indices in shuffled(len(self.examples), self.batch_size, seed=self.seed, epoch=epoch)[first:]:
            yield self.examples.batch(world.share(indices))

    def in_order(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """Yield the examples, or the first ``limit`` of them, in batches of ``size``."""
        count = len(self.examples)
        for indices in in_order(count if limit is None else min(limit, count), size):
            yield self.examples.batch(indices)

    def peek(self, count: int) -> Batch:
        """Return the first ``count`` examples, or fewer if there are fewer."""
        return self.examples.batch(range(min(count, len(self.examples))))
