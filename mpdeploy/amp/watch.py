"""Finding the first thing that is not finite: in which module's forward pass, or whose gradient."""

from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.utils.hooks import RemovableHandle

from mpdeploy.amp.gradients import all_finite
from mpdeploy.amp.ranges import plain, tensors_in


class Watch:
    """Looks over a model's passes while it is armed; costs nothing while it is not.

    What it sees stays on the device until somebody asks for the culprit.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[RemovableHandle] = []
        self._seen: list[tuple[str, torch.Tensor]] = []

    @property
    def culprit(self) -> str:
        """What was first not finite in the latest step: what goes in, a weight, a module's output or its gradient."""
        if not self._seen:
            return ""
        device = self._seen[-1][1].device
        finite = torch.stack([flag.to(device) for _, flag in self._seen]).tolist()
        return next((what for (what, _), fine in zip(self._seen, finite, strict=True) if not fine), "")

    def forget(self) -> None:
        """Forget what earlier steps showed."""
        self._seen = []

    def arm(self) -> None:
        """Look at every module's passes from now on."""
        if self._handles:
            return
        self._handles.append(self._model.register_forward_pre_hook(self._inputs, with_kwargs=True))
        for name, module in self._model.named_modules():
            self._handles.append(module.register_forward_hook(_Look(self, name)))

    def disarm(self) -> None:
        """Stop looking."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._seen = [], []

    def saw(self, what: str, value: Any) -> None:
        """Look, if armed, at the tensors in a value."""
        if not self._handles:
            return
        for tensor in tensors_in(value):
            if tensor.is_floating_point() or tensor.is_complex():
                self._seen.append((what, all_finite(plain(tensor))))

    @_disable_dynamo  # as below: a compiled model runs the hooks as they are
    def _inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.saw("the model's input", (args, kwargs))


class _Look:
    def __init__(self, watch: Watch, name: str) -> None:
        self._watch, self._name = watch, name or "(the model)"

    @_disable_dynamo
    def __call__(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            self._watch.saw(f"the weight `{self._name}.{name}`", parameter)
        self._watch.saw(f"the output of `{self._name}` ({type(module).__name__}) in the forward pass", outputs)
        for tensor in tensors_in(outputs):
            if tensor.requires_grad and plain(tensor) is tensor:
                tensor.register_hook(self._gradient)  # type: ignore[no-untyped-call]

    def _gradient(self, gradient: torch.Tensor) -> None:
        self._watch.saw(f"the gradient that reaches the output of `{self._name}`", gradient)
