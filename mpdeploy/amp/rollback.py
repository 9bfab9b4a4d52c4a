"""Undo for a model's buffers, so that a skipped step leaves BatchNorm's statistics as they were before it."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class _Kept:
    buffer: torch.Tensor
    values: torch.Tensor


class BufferKeeper:
    """Remembers the buffers as they stand before a step's first forward pass, and can restore them.

    Every buffer is copied every time: torch's kernels move BatchNorm's statistics without a trace in the
    tensors' version counters, so there is no telling which ones changed.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kept: dict[tuple[nn.Module, str], _Kept] = {}

    @torch.no_grad()
    def remember(self) -> None:
        """Take the present buffers as the state to return to."""
        kept = {}
        for module in self._model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                known = self._kept.get((module, name))
                if known and known.buffer is buffer:
                    known.values.copy_(buffer)
                    kept[module, name] = known
                else:
                    kept[module, name] = _Kept(buffer, buffer.clone())
        self._kept = kept

    @torch.no_grad()
    def restore(self) -> None:
        """Give the buffers back the values, and the tensor objects, that they had at ``remember``."""
        for (module, name), kept in self._kept.items():
            kept.buffer.copy_(kept.values)
            setattr(module, name, kept.buffer)
