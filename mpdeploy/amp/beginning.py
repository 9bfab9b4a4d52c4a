"""When a training step begins: with the first forward pass that a gradient can flow back through."""

import contextlib
from collections.abc import Callable, Iterator

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

    @property
    def has_passes(self) -> bool:
        """Whether forward passes belong to the step that is under way: what it began with was remembered."""
        return self._begun or self._evaluated

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Run a forward pass inside."""
        if self._begun or not torch.is_grad_enabled():
            yield
            return
        self._remember()
        training = any(module.training for module in self._model.modules())
        if training:
            self._begin()
        recorded = _recorded()
        try:
            yield
        finally:
            recording = _recorded() != recorded
            self._begun, self._evaluated = recording and training, recording and not training

    def backward(self) -> None:
        """A loss is taken: what looked like an evaluation has begun the step."""
        if self._evaluated:
            self._begin()
        self._begun, self._evaluated = self.has_passes, False

    def end(self) -> None:
        """The step is over."""
        self._begun = self._evaluated = False


def _recorded() -> int:
    """Return a number that grows with each operation that autograd records in this thread."""
    number: int = torch._C._autograd._get_sequence_nr()
    return number
