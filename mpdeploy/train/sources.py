"""What a recipe's ``Data`` may hold, each as a source: our own examples, and what torch.utils.data has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from mpdeploy.errors import UsageError
from mpdeploy.train.data import Indexed, Source
from mpdeploy.train.loaders import Loader, Stream


@dataclass(frozen=True)
class Sources:
    """A recipe's data: where batches to learn from come from, and those to measure with."""

    train: Source
    held_out: Source


def source_of(
    data: Any,
    inputs: Sequence[str] = (),
    *,
    batch_size: int = 1,
    seed: int = 0,
    steps: int | None = None,
    what: str = "examples",
) -> Source:
    """Return examples of any kind as a source.

    ``data`` is our own ``Examples``, a ``Dataset`` or ``IterableDataset`` of torch, a ``DataLoader`` around one, or a
    source already.  ``inputs`` names the model's inputs; ``steps`` says how long an epoch is where the examples do not
    know their number; ``what`` is what messages call them.  Raises ``UsageError`` for anything else.
    """
    if all(callable(getattr(data, name, None)) for name in ("steps", "epoch", "in_order", "peek")):
        source: Source = data
        return source
    if hasattr(data, "__len__") and not isinstance(data, IterableDataset) and not len(data):
        raise UsageError(f"the recipe has no {what}")
    if callable(getattr(data, "batch", None)) and hasattr(data, "__len__"):
        return Indexed(data, batch_size, seed)
    if isinstance(data, IterableDataset):
        return Stream(DataLoader(data, batch_size), inputs, batch_size, seed, steps)
    if isinstance(data, Dataset):
        return Loader(DataLoader(data, batch_size, shuffle=True), inputs, batch_size, seed)
    if not isinstance(data, DataLoader):
        kind = type(data).__name__
        raise UsageError(
            f"the recipe's {what} are {'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}, which none can train with",
            remedy="use Arrays, a Dataset or a DataLoader, or a class with __len__() and batch(indices) of a Batch",
        )
    if isinstance(data.dataset, IterableDataset):
        return Stream(data, inputs, batch_size, seed, steps)
    if data.batch_sampler is None:
        raise UsageError(
            f"the DataLoader of the {what} has batch_size=None over a dataset with indices, and so makes no batches",
            remedy=f"give it batch_size={batch_size}",
        )
    return Loader(data, inputs, batch_size, seed)
