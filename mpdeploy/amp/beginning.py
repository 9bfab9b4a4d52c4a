"""When a training step begins: with the first forward pass that a gradient can flow back through."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn


class Beginning:
    """Tells forward passes of a training step from evaluations, and calls ``begin`` before the first one of a step.

    A pass that records nothing for a backward pass, or runs with every module in evaluation mode, does not begin a
    step: what a skipped step undoes is counted from the next pass on.  If a loss is taken of one all the same, the
    step has begun with it.
    """

    def __init__(self, model: nn.Module, remember: Callable[[], None], begin: Callable[[], None]) -> None:
        self._model, self._remember, self._begin = model, remember, begin
        self._begun = self._evaluated = False
        self._calls = _Calls()

    @property
    def has_passes(self) -> bool:
        """Whether forward passes belong to the step that is under way: what it began with was remembered."""
        return self._begun or self._evaluated

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Run a forward pass inside."""
        if not torch.is_grad_enabled():
            yield
            return
        begins = not self._begun
        training = any(module.training for module in self._model.modules())
        if begins:
            self._remember()
            if training:
                self._begin()
        try:
            with self._calls.watched(self._model):
                yield
        finally:
            if begins:
                recorded = self._calls.recorded
                self._begun, self._evaluated = recorded and training, recorded and not training

    def backward(self) -> None:
        """A loss is taken: what looked like an evaluation has begun the step."""
        if self._evaluated:
            self._begin()
        self._begun, self._evaluated = self.has_passes, False

    def end(self) -> None:
        """The step is over."""
        self._begun = self._evaluated = False


class _Calls:
    """Tells whether something was recorded for a backward pass, by calls of the model or, without any, by autograd.

    Autograd's count alone does not tell: autocast records its casts of weights even where gradients are off.
    """

    def __init__(self) -> None:
        self._called = self._with_gradients = False
        self._count = 0

    @property
    def recorded(self) -> bool:
        return self._with_gradients if self._called else _count() != self._count

    @contextlib.contextmanager
    def watched(self, model: nn.Module) -> Iterator[None]:
        self._called = self._with_gradients = False
        self._count = _count()
        handle = model.register_forward_pre_hook(self)
        try:
            yield
        finally:
            handle.remove()

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        self._called = True
        if torch.is_grad_enabled():
            self._with_gradients = True


def _count() -> int:
    """Return a number that grows with each operation that autograd records in this thread."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number
