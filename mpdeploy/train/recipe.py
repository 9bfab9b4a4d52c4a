"""A recipe: all that it takes to train one model, in one short file that a person can read.

The file defines ``recipe = Recipe(...)``; `models/digits_cnn.py` is an example.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mpdeploy.amp.levels import AmpConfig, Level
from mpdeploy.errors import UsageError
from mpdeploy.train.data import LABELS, TARGETS
from mpdeploy.train.specs import TensorSpec


@dataclass(frozen=True)
class Data:
    """The examples to learn from, and those held out to measure with.

    Each is our own ``Arrays`` or ``Examples``, a ``Dataset`` of torch.utils.data, or a ``DataLoader``, whose workers,
    pinned memory, sampler and ``collate_fn`` are used then.  An example is (input, …, label), or a dict with the names
    of the recipe's inputs and ``labels``.
    """

    train: Any
    held_out: Any


class StopTraining(Exception):  # noqa: N818 - a decision, not a malfunction
    """Raised by a recipe's ``on_epoch_end`` or ``on_step_end``: the training ends here, as if it had been its end."""


@dataclass(frozen=True)
class Metric:
    """What counts on held-out examples: the mean of a score of each.

    ``score(outputs, labels)`` returns one number per example, shape (n,).
    """

    name: str
    score: Callable[[Any, torch.Tensor], torch.Tensor]
    higher_is_better: bool = True


def _top1(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (logits.argmax(-1) == labels).float()


accuracy = Metric("accuracy", _top1)

LOSS, SINCE_BEST = "loss", "epochs since best"  # what a recipe is told beside its metrics
HELD_OUT_LOSS = "held-out loss"  # counts where a recipe has no metric


@dataclass(frozen=True)
class Recipe:
    """How to train one model.

    ``model()`` builds it with fresh weights (random numbers are seeded by the loop); it is called with the
    ``inputs`` in order and returns a tensor, or a tuple of them, named by ``outputs``.  ``loss(outputs, labels)``
    returns a scalar; it sees FP32 outputs, outside autocast.  ``metric`` is what counts on held-out examples, or
    several, of which the first decides which epoch is best; without one that is the loss.  A step learns from
    ``batch_size`` examples.  ``level`` is a precision level, its word, or a configuration of your own.

    ``optimizer(model)`` may group parameters.  ``schedule(optimizer, steps)`` returns a scheduler that is stepped
    after each applied step, or a ``ReduceLROnPlateau``, which is told the first metric after each epoch.
    ``clip_norm`` bounds the gradient's 2-norm.  With ``ema_decay`` an average of the weights is kept, measured and
    handed over.  ``steps_per_epoch`` is how long an epoch is where the examples do not know their number.

    With ``accumulate`` a batch goes through the model in so many parts, one after the other, which takes less memory:
    the loss must be a mean over examples then.  ``"auto"`` starts with one part and takes twice as many each time
    that memory runs out.  The modules that ``checkpointing`` names (``"blocks.*"``) compute their activations again in
    the backward pass instead of keeping them.  Those that ``fp32_modules`` names compute in FP32 whatever the level.

    ``on_step_end(step, loss)``, with steps from 1, is called after each step.  ``on_epoch_end(epoch, metrics)``, with
    epochs from 1, is called after each epoch with all metrics by name, ``"loss"``, the mean over the epoch's steps,
    and ``"epochs since best"``; what is not finite is None.  Either may raise ``StopTraining``.  Whatever is kept
    elsewhere between two calls is lost when a training is stopped and goes on.

    Raises ``UsageError`` for contradictions.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    model: Callable[[], nn.Module]
    data: Callable[[], Data]
    optimizer: Callable[[nn.Module], Optimizer]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]
    metric: Metric | Sequence[Metric] | None = None
    epochs: int = 0  # to be given, as is the size of a batch; what stands before them need not be
    batch_size: int = 0
    level: Level | AmpConfig | str = Level.BF16_MIXED
    accumulate: int | Literal["auto"] = 1
    clip_norm: float | None = None
    ema_decay: float | None = None
    schedule: Callable[[Optimizer, int], LRScheduler] | None = None
    steps_per_epoch: int | None = None
    checkpointing: tuple[str, ...] = ()
    fp32_modules: tuple[str, ...] = ()
    on_step_end: Callable[[int, float], None] | None = None
    on_epoch_end: Callable[[int, Mapping[str, float | None]], None] | None = None

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics, the one that decides first; none where the loss decides."""
        return (self.metric,) if isinstance(self.metric, Metric) else tuple(self.metric or ())

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of what is measured on held-out examples, what decides first."""
        return tuple(metric.name for metric in self.metrics) or (HELD_OUT_LOSS,)

    @property
    def higher_is_better(self) -> bool:
        """Whether what decides which epoch is best gets better as it grows."""
        return bool(self.metrics) and self.metrics[0].higher_is_better

    def better(self, value: float | None, other: float | None) -> bool:
        """Return whether one value of what decides is better than another; None is never better."""
        if value is None or other is None:
            return other is None and value is not None
        return value > other if self.higher_is_better else value < other

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
        self._refuse_metrics()
        counts = {"epochs": self.epochs, "batch_size": self.batch_size, "steps_per_epoch": self.steps_per_epoch or 1}
        counts |= {} if self.accumulate == "auto" else {"accumulate": self.accumulate}
        for name, count in counts.items():
            if not isinstance(count, int) or count < 1:
                raise UsageError(f"the recipe's {name} is {count!r}", remedy="use a whole number from 1")
        for name, patterns in (("checkpointing", self.checkpointing), ("fp32_modules", self.fp32_modules)):
            if not _sequence_of(str, patterns):
                raise UsageError(f"the recipe's {name} is {patterns!r}", remedy=f'write {name}=("blocks.*",)')
        if self.accumulate != "auto" and self.accumulate > self.batch_size:
            raise UsageError(
                f"the recipe's batches of {self.batch_size} cannot be taken in {self.accumulate} parts",
                remedy="choose accumulate from 1 to batch_size",
            )
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise UsageError(f"the recipe's clip_norm is {self.clip_norm}", remedy="choose a positive one, or None")
        if self.ema_decay is not None and not 0 < self.ema_decay < 1:
            raise UsageError(f"the recipe's ema_decay is {self.ema_decay}", remedy="choose one such as 0.999, or None")
        AmpConfig.of(self.level)

    def _refuse_metrics(self) -> None:
        if not _sequence_of(Metric, self.metrics):
            raise UsageError(f"the recipe's metric is {self.metric!r}", remedy="write metric=Metric(…)")
        names = [*self.metric_names, LOSS, SINCE_BEST]
        if len(set(names)) != len(names):
            raise UsageError(
                f"the recipe's metrics are named {[metric.name for metric in self.metrics]}",
                remedy=f"name them differently, none of them `{LOSS}` or `{SINCE_BEST}`",
            )


def _sequence_of(kind: type, value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(isinstance(item, kind) for item in value)
