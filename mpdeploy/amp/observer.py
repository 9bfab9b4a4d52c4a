"""What may look on while an engine trains."""

from collections.abc import Mapping
from typing import Protocol

import torch

from mpdeploy.amp.result import StepResult


class StepObserver(Protocol):
    """Told of each step's stages in order; it must change nothing."""

    def begin_step(self) -> None:
        """Before the step's first forward pass."""

    def saw_loss(self, loss: torch.Tensor) -> None:
        """Before each backward pass: the loss, unscaled."""

    def saw_gradients(self, gradients: Mapping[str, torch.Tensor], scale: float) -> None:
        """Before they are applied: gradients by the names of their parameters, and the scale they were computed at."""

    def end_step(self, result: StepResult) -> None:
        """After the step."""
