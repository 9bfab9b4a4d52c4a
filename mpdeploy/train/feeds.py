"""The files of feeds that later steps read: to calibrate with, and to verify with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpdeploy.files import atomic_folder
from mpdeploy.train.data import LABELS, TARGETS, Examples, Source
from mpdeploy.train.sources import source_of
from mpdeploy.train.specs import TensorSpec


def write_feeds(
    folder: Path, specs: Sequence[TensorSpec], examples: Examples | Source, *, size: int, limit: int
) -> int:
    """Write up to ``limit`` examples as feeds for calibrating and verifying; return how many.

    Each file ``0000.npz`` … holds one feed of ``size`` examples: an array for each input under its name, and the
    right answers, which are no input: whole numbers, which stand for classes, under ``labels``, all others under
    ``targets``.  Where the model's first axis is fixed, a smaller last feed
    is left out.  The folder appears whole, in place of what was there.
    """
    fixed = any(isinstance(spec.shape[0], int) for spec in specs if spec.shape)
    written = 0
    with atomic_folder(folder) as scratch:
        for number, batch in enumerate(source_of(examples).in_order(size, limit)):
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
