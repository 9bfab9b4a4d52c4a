"""What a model holds: its FP32 weights by name, and others in their place for a while."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from mpdeploy.amp.dtypes import is_low, widened
from mpdeploy.amp.masters import MasterWeights
from mpdeploy.amp.names import bare_names, fitted
from mpdeploy.amp.slots import Slots
from mpdeploy.amp.state import copied
from mpdeploy.errors import UsageError


class ModelWeights:
    """A model's parameters and buffers under names without wrappers, FP32 masters in place of low weights."""

    def __init__(self, model: nn.Module, masters: MasterWeights) -> None:
        self._model, self._masters = model, masters

    def names(self) -> dict[int, str]:
        """Return the names of what the optimizers move, by id."""
        return {id(self._masters.master_of(p)): name for name, p in self._named_parameters().items()}

    def named(self) -> dict[str, torch.Tensor]:
        """Return what training moves, by name: FP32 masters or the parameters themselves, averageable buffers."""
        self._masters.refresh()
        parameters = {name: self._masters.master_of(p) for name, p in self._named_parameters().items()}
        return {**parameters, **self.named_buffers()}

    def named_buffers(self) -> dict[str, torch.Tensor]:
        """Return the floating-point buffers that are part of the model's state, by name."""
        found = {}
        for path, module in self._model.named_modules():
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_floating_point() and name not in module._non_persistent_buffers_set:
                    found[f"{path}.{name}".removeprefix(".")] = buffer
        bare = bare_names(self._model, found)
        return {bare[name]: buffer for name, buffer in found.items()}

    @contextlib.contextmanager
    def full_precision(self) -> Iterator[None]:
        """Let the model hold its FP32 weights while the context lasts; what has no master is widened for the time."""
        self._masters.refresh()
        bare = [p for p in self._model.parameters() if is_low(p) and self._masters.master_of(p) is p]
        wide = {id(p): nn.Parameter(p.detach().float(), requires_grad=p.requires_grad) for p in bare}
        with Slots(self._model).holding({**self._masters.stand_ins, **wide}):
            yield

    @contextlib.contextmanager
    def holding(self, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Let the model hold ``values``, by name, in place of its parameters and buffers while the context lasts."""
        own = {**self._named_parameters(), **self.named_buffers()}
        held = [(own[name], own[name].data) for name in values if name in own]
        for name, value in values.items():
            if name in own:
                own[name].data = value.to(own[name].dtype)
        try:
            yield
        finally:
            for tensor, data in held:
                tensor.data = data

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return copies of the model's state, in FP32 where it is lower."""
        with self.full_precision():
            state = self._model.state_dict()
            bare = bare_names(self._model, state)
            return {bare[name]: copied(_in_fp32(value)) for name, value in state.items()}

    def fitting(self, saved: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return a saved state under the names that the model has; raise ``UsageError`` if it is another model's."""
        own = self._model.state_dict()
        bare = bare_names(self._model, own)
        found = fitted(saved, bare.values())
        lacking, surplus = sorted(set(bare.values()) - found.keys()), sorted(found.keys() - set(bare.values()))
        parameters = {name for name, _ in self._model.named_parameters(remove_duplicate=False)}
        other = [bare[n] for n in parameters & own.keys() if bare[n] in found and found[bare[n]].shape != own[n].shape]
        if lacking or surplus or other:
            faults = [f"lacks `{name}`" for name in lacking] + [f"has `{name}`" for name in surplus]
            faults += [f"has another shape for `{name}`" for name in sorted(other)]
            more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
            raise UsageError(
                f"the saved state is of another model: it {', '.join(faults[:3])}{more}",
                remedy="make the same model again",
            )
        return {name: found[bare[name]] for name in own}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take over a state that ``fitting`` returned: masters in full, low-precision weights rounded."""
        for path, module in self._model.named_modules():
            for name, buffer in module._buffers.items():
                saved = state.get(f"{path}.{name}".removeprefix("."))
                if buffer is not None and saved is not None and saved.shape != buffer.shape:
                    module._buffers[name] = buffer.new_empty(saved.shape)  # it grows as the model runs
        self._model.load_state_dict(state)
        self._masters.refresh()

    def _named_parameters(self) -> dict[str, nn.Parameter]:
        named = dict(self._model.named_parameters())
        bare = bare_names(self._model, named)
        return {bare[name]: parameter for name, parameter in named.items()}


def _in_fp32(value: Any) -> Any:
    return widened(value) if isinstance(value, torch.Tensor) else value  # a module's extra state may be anything
