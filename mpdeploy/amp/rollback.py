"""Undo for a model's buffers, so that a skipped step leaves BatchNorm's statistics as they were before it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase


@dataclass
class _Kept:
    """A buffer with its values of some time.

    ``traceless`` tells that writes to it leave no trace in its version, ``proven`` that this was looked into, ``fresh``
    that its values were copied just now.
    """

    buffer: torch.Tensor
    values: torch.Tensor
    version: int
    traceless: bool
    proven: bool = False
    fresh: bool = True

    @property
    def stale(self) -> bool:
        return self.traceless or self.buffer._version != self.version


class BufferKeeper:
    """Remembers the buffers as they stand before a step's first forward pass, and can restore them.

    A buffer is copied when it is met, and again only where it may have changed since.  Normalisation layers' kernels
    move their statistics without a trace in the tensors' version counters, as does whoever writes through ``data``:
    the former's are copied every time, and so are others that are seen, at the second step, to have changed so.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kept: dict[tuple[nn.Module, str], _Kept | None] = {}

    @torch.inference_mode(False)
    @torch.no_grad()
    def remember(self) -> None:
        """Take the present buffers as the state to return to."""
        kept: dict[tuple[nn.Module, str], _Kept | None] = {}
        for module, name, buffer in self._buffers():
            known = self._kept.get((module, name))
            if buffer is None or known is None or known.buffer is not buffer or known.values.shape != buffer.shape:
                kept[module, name] = None if buffer is None else _kept(module, buffer)
                continue
            known.fresh = False
            kept[module, name] = known
        _prove([known for known in kept.values() if known is not None and not known.fresh])
        stale = [known for known in kept.values() if known is not None and not known.fresh and known.stale]
        self._kept = kept
        _copy([known.values for known in stale], [known.buffer for known in stale])
        for known in stale:
            known.version = known.buffer._version

    @torch.no_grad()
    def restore(self) -> None:
        """Give the buffers back the values, and the tensor objects, that they had at ``remember``."""
        for (module, name), known in self._kept.items():
            module._buffers[name] = None if known is None else known.buffer
        stale = [known for known in self._kept.values() if known is not None and known.stale]
        _copy([known.buffer for known in stale], [known.values for known in stale])
        for known in stale:
            known.version = known.buffer._version

    def _buffers(self) -> Iterator[tuple[nn.Module, str, torch.Tensor | None]]:
        for module in self._model.modules():
            for name, buffer in module._buffers.items():
                yield module, name, buffer


def _kept(module: nn.Module, buffer: torch.Tensor) -> _Kept:
    return _Kept(buffer, buffer.detach().clone(), buffer._version, isinstance(module, _NormBase))


def _prove(met_again: list[_Kept]) -> None:
    """Find out, once for each buffer, whether it was written to without a trace."""
    unproven = [known for known in met_again if not known.proven and not known.traceless]
    quiet = [known for known in unproven if known.buffer._version == known.version]
    device = quiet[0].buffer.device if quiet else None
    same = [_equal(known.values, known.buffer).to(device) for known in quiet]
    for known, unchanged in zip(quiet, torch.stack(same).tolist() if same else [], strict=True):
        known.traceless = not unchanged
    for known in unproven:
        known.proven = True


def _equal(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return ((left == right) | ((left != left) & (right != right))).all()


def _copy(to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
    if to:
        torch._foreach_copy_(to, of)
