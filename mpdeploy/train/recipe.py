"""A recipe: all that it takes to train one model, in one short file that a person can read.

The file defines ``recipe = Recipe(...)``; `models/digits_cnn.py` is an example.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mpdeploy.amp.levels import AmpConfig, Level
from mpdeploy.errors import UsageError
from mpdeploy.train.data import LABELS, TARGETS, Examples
from mpdeploy.train.specs import TensorSpec


@dataclass(frozen=True)
class Data:
    """The examples to learn from, and those held out to measure with."""

    train: Examples
    held_out: Examples


@dataclass(frozen=True)
class Metric:
    """What counts on held-out examples: the mean of a score of each.

    ``score(outputs, labels)`` returns one number per example, shape (n,).
    """

    name: str
    score: Callable[[Any, torch.Tensor], torch.Tensor]
    higher_is_better: bool = True

    def better(self, value: float | None, other: float | None) -> bool:
        """Return whether ``value`` is better than ``other``; None, which stands for not finite, is never better."""
        if value is None or other is None:
            return other is None and value is not None
        return value > other if self.higher_is_better else value < other


def _top1(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (logits.argmax(-1) == labels).float()


accuracy = Metric("accuracy", _top1)


@dataclass(frozen=True)
class Recipe:
    """How to train one model.

    ``model()`` builds it with fresh weights (random numbers are seeded by the loop); it is called with the
    ``inputs`` in order and returns a tensor, or a tuple of them, named by ``outputs``.  ``loss(outputs, labels)``
    returns a scalar; it sees FP32 outputs, outside autocast.  ``optimizer(model)`` may group parameters;
    ``schedule(optimizer, steps)`` returns a scheduler that is stepped after each applied step.  ``level`` is a
    precision level, its word, or a configuration of your own.  A step learns from ``batch_size`` examples; with
    ``accumulate`` they go through the model in so many parts, one after the other, which takes less memory: the
    loss must be a mean over examples then.  ``clip_norm`` bounds the gradient's 2-norm.  With ``ema_decay`` an
    average of the weights is kept, measured and handed over.
    Raises ``UsageError`` for contradictions.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    model: Callable[[], nn.Module]
    data: Callable[[], Data]
    optimizer: Callable[[nn.Module], Optimizer]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]
    metric: Metric
    epochs: int
    batch_size: int
    level: Level | AmpConfig | str = Level.BF16_MIXED
    accumulate: int = 1
    clip_norm: float | None = None
    ema_decay: float | None = None
    schedule: Callable[[Optimizer, int], LRScheduler] | None = None

    def __post_init__(self) -> None:
        if not (_sequence_of(TensorSpec, self.inputs) and _sequence_of(str, self.outputs)):
            raise UsageError(
                f"the recipe's inputs are {self.inputs!r} and its outputs {self.outputs!r}",
                remedy='write inputs=(TensorSpec(…),) and outputs=("name",)',
            )
        names = [spec.name for spec in self.inputs] + list(self.outputs)
        if not self.inputs or not self.outputs or len(set(names)) != len(names) or {LABELS, TARGETS} & {*names}:
            raise UsageError(
                f"the recipe's inputs and outputs are named {names}",
                remedy=f"name at least one of each, all differently, none of them `{LABELS}` or `{TARGETS}`",
            )
        for name, count in (("epochs", self.epochs), ("batch_size", self.batch_size), ("accumulate", self.accumulate)):
            if not isinstance(count, int) or count < 1:
                raise UsageError(f"the recipe's {name} is {count!r}", remedy="use a whole number from 1")
        if self.accumulate > self.batch_size:
            raise UsageError(
                f"the recipe's batches of {self.batch_size} cannot be taken in {self.accumulate} parts",
                remedy="choose accumulate from 1 to batch_size",
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise UsageError(f"the recipe's clip_norm is {self.clip_norm}", remedy="choose a positive one, or None")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise UsageError(f"the recipe's ema_decay is {self.ema_decay}", remedy="choose one such as 0.999, or None")
        AmpConfig.of(self.level)


def _sequence_of(kind: type, value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(item, kind) for item in value)
