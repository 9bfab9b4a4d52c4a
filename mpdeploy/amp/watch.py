"""Finding the first thing that is not finite: in which module's forward pass, or whose gradient."""

from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.utils.hooks import RemovableHandle

from mpdeploy.amp.gradients import is_finite
from mpdeploy.amp.ranges import plain, tensors_in


class Watch:
    """Looks over a model's passes while it is armed; costs nothing while it is not.

    ``culprit`` says what was first not finite in the latest step: what goes in, a weight, a module's output, or
    the gradient of one.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[RemovableHandle] = []
        self.culprit = ""

    def begin_step(self) -> None:
        """Forget what earlier steps showed."""
        self.culprit = ""

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
        self._handles = []

    def blame(self, what: str) -> None:
        """Take ``what`` for the culprit unless there is an earlier one."""
        self.culprit = self.culprit or what

    @_disable_dynamo  # as below: a compiled model runs the hooks as they are
    def _inputs(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not all(_finite(value) for value in (*args, *kwargs.values())):
            self.blame("the model's input")


class _Look:
    def __init__(self, watch: Watch, name: str) -> None:
        self._watch, self._name = watch, name or "(the model)"

    @_disable_dynamo
    def __call__(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        kind = type(module).__name__
        for name, parameter in module.named_parameters(recurse=False):
            if not is_finite(plain(parameter)):
                self._watch.blame(f"the weight `{self._name}.{name}`")
        if not _finite(outputs):
            self._watch.blame(f"the output of `{self._name}` ({kind}) in the forward pass")
        for tensor in tensors_in(outputs):
            if tensor.requires_grad and plain(tensor) is tensor:
                tensor.register_hook(self._gradient)  # type: ignore[no-untyped-call]

    def _gradient(self, gradient: torch.Tensor) -> None:
        if not is_finite(gradient):
            self._watch.blame(f"the gradient that reaches the output of `{self._name}`")


def _finite(value: Any) -> bool:
    return all(is_finite(plain(t)) for t in tensors_in(value) if t.is_floating_point() or t.is_complex())
