"""Ranges of activations, streamed per module while a model runs."""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo

from mpdeploy.numerics.telemetry import ModuleRange

INPUT = "(input)"  # stands for a module's name at the ranges of what goes into the model


class RangeMeter:
    """Watches what goes into a model and comes out of each module while ``watching()`` lasts, in constant memory."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._ranges: dict[tuple[str, int], ModuleRange] = {}
        self._fresh: list[tuple[str, int, int, torch.Tensor]] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the context lasts; what was seen of a pass that fails counts for nothing."""
        record = _Record(self._fresh, INPUT)
        handles = [self._model.register_forward_pre_hook(lambda module, inputs: record(module, (), inputs))]
        for name, module in self._model.named_modules():
            handles.append(module.register_forward_hook(_Record(self._fresh, name)))
        try:
            yield
        except BaseException:
            # Also a context that was abandoned and is closed when Python collects it, which may be anywhere, inside
            # torch's tracing too: no tensor may be touched then.
            self._fresh.clear()
            raise
        finally:
            for handle in handles:
                handle.remove()
        self._merge()

    def ranges(self) -> tuple[ModuleRange, ...]:
        """Return what was seen so far, in the order of the first calls."""
        return tuple(self._ranges.values())

    def _merge(self) -> None:
        if not self._fresh:
            return
        # One transfer for all: on a GPU each by itself would wait for the device.
        bounds = torch.stack([pair for *_, pair in self._fresh]).tolist()
        for (module, index, rank, _), (low, high) in zip(self._fresh, bounds, strict=True):
            seen = self._ranges.get((module, index), ModuleRange(module, index, rank, None, None, 0))
            self._ranges[module, index] = _widened(seen, low, high)
        self._fresh.clear()


class _Record:
    def __init__(self, fresh: list[tuple[str, int, int, torch.Tensor]], name: str) -> None:
        self._fresh, self._name = fresh, name

    @_disable_dynamo  # a compiled model runs the hook as it is
    @torch.no_grad()
    def __call__(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        for index, tensor in enumerate(tensors_in(outputs)):
            if tensor.is_floating_point() and tensor.numel():
                pair = torch.stack(torch.aminmax(plain(tensor).detach())).float()
                self._fresh.append((self._name, index, tensor.dim(), pair))


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor of plain values behind one: this process's shard, or all that ``torch.func`` maps over."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    local: torch.Tensor = getattr(tensor, "to_local", lambda: tensor)()
    return local


def tensors_in(outputs: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an output that may be nested, in the order by which ``ModuleRange.index`` counts them."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, (tuple, list)):
        for output in outputs:
            yield from tensors_in(output)
    elif isinstance(outputs, dict):
        yield from tensors_in(tuple(outputs.values()))


def _widened(seen: ModuleRange, low: float, high: float) -> ModuleRange:
    calls, nonfinite = seen.calls + 1, seen.nonfinite
    old_low, old_high = seen.low, seen.high
    if not (math.isfinite(low) and math.isfinite(high)):
        return ModuleRange(seen.module, seen.index, seen.rank, old_low, old_high, calls, nonfinite + 1)
    low = low if old_low is None else min(low, old_low)
    high = high if old_high is None else max(high, old_high)
    return ModuleRange(seen.module, seen.index, seen.rank, low, high, calls, nonfinite)
