"""The engine: autocast, loss scaling and master weights around a model and its optimizers."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

from mpdeploy.amp.gradients import is_finite, scale_, total_norm
from mpdeploy.amp.levels import AmpConfig, Level
from mpdeploy.amp.masters import MasterWeights
from mpdeploy.amp.result import Skip, StepResult
from mpdeploy.amp.rollback import BufferKeeper
from mpdeploy.amp.scaling import ScaleState
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format

_DTYPES = {Format.FP32: torch.float32, Format.BF16: torch.bfloat16, Format.FP16: torch.float16}
_NO_SCALE = ScaleState(1.0)


class Engine:
    """Trains ``model`` in the given precision; the optimizers step together or not at all.

    A step is: ``forward()`` around the model's call, ``backward(loss)`` once or, to accumulate gradients or for
    several losses, more often, then ``step()``.  The loss belongs outside ``forward()``, on FP32 outputs: losses
    are where FP16 overflows first.  At a level with master weights the model is converted here, and the
    optimizers' groups hold FP32 masters from here on.

    Raises ``UsageError`` for an optimizer that holds no parameter of the model, or that evaluates the loss
    itself (LBFGS), which neither scaling nor skipping can reach.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], precision: Level | AmpConfig
    ) -> None:
        self.config = precision.config if isinstance(precision, Level) else precision
        self._model = model
        self._optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._refuse_unfit_optimizers()
        self._device = next(model.parameters()).device.type
        self._dtype = _DTYPES[self.config.compute]
        self._masters = MasterWeights(
            model, self._optimizers if self.config.master_weights else [], _DTYPES[self.config.weights]
        )
        for parameter in model.parameters():
            self._names[id(self._masters.master_of(parameter))] = self._names[id(parameter)]
        self._buffers = BufferKeeper(model)
        self._mid_step = False
        self._scale = self.config.scaling.start() if self.config.scaling else _NO_SCALE

    @property
    def scale(self) -> ScaleState:
        """The state of the loss scale; its ``scale`` is 1 at a level without one."""
        return self._scale

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Run the model's forward pass inside: autocast in the level's compute format."""
        if not self._mid_step:
            self._buffers.remember()
            self._mid_step = True
        with torch.autocast(self._device, self._dtype, enabled=self.config.compute is not Format.FP32):
            yield

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of ``loss``, a scalar, to those of this step."""
        torch.autograd.backward(loss * self._scale.scale)
        self._masters.collect_gradients()

    def step(self, *, clip_norm: float | None = None) -> StepResult:
        """Apply this step's gradients and clear them; return what happened.

        With ``clip_norm`` the gradients are first scaled down to that 2-norm, in true units, if they exceed it.
        If any gradient is infinite or NaN, nothing is applied: parameters, optimizer state and buffers are then
        what they were before the step's first ``forward()``.  Raises ``UsageError`` if there are no gradients.
        """
        parameters = [p for p in self._optimized() if p.grad is not None]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            raise UsageError("a step without gradients", remedy="call backward(loss) before step()")
        before = self._scale
        norm = total_norm(gradients) / before.scale
        finite = math.isfinite(norm)
        if self.config.scaling:
            self._scale = self.config.scaling.update(before, finite=finite)
        if finite:
            clip = min(1.0, clip_norm / (norm + 1e-6)) if clip_norm is not None else 1.0
            scale_(gradients, clip / before.scale)
            for optimizer in self._optimizers:
                optimizer.step()
            self._masters.publish()
            result = StepResult(None, before.scale, self._scale.scale, norm, clipped=clip < 1)
        else:
            culprits = tuple(self._names[id(p)] for p, g in zip(parameters, gradients, strict=True) if not is_finite(g))
            self._buffers.restore()
            result = StepResult(Skip.NONFINITE_GRADIENT, before.scale, self._scale.scale, None, nonfinite=culprits)
        self._model.zero_grad(set_to_none=True)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._mid_step = False
        return result

    @contextlib.contextmanager
    def full_precision(self) -> Iterator[None]:
        """Let the model hold its FP32 weights while the context lasts, to evaluate or save it."""
        with self._masters.in_place_of_low():
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return all that a later run needs to go on: FP32 model state, optimizer states, loss scale.

        Loads with ``weights_only=True``.
        """
        with self.full_precision():
            model = {name: tensor.detach().clone() for name, tensor in self._model.state_dict().items()}
        scale = self._scale
        return {
            "model": model,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "scale": [scale.scale, scale.clean_steps, scale.bad_streak],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` returned, of the same model, optimizers and level."""
        with self.full_precision():
            self._model.load_state_dict(state["model"])
        self._masters.publish()
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._scale = ScaleState(*state["scale"])

    def _optimized(self) -> Iterator[torch.Tensor]:
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]

    def _refuse_unfit_optimizers(self) -> None:
        for optimizer in self._optimizers:
            if isinstance(optimizer, LBFGS):
                raise UsageError(
                    "LBFGS evaluates the loss inside its step, where it can be neither scaled nor skipped",
                    remedy="use a first-order optimizer such as AdamW or SGD",
                )
        if not any(id(parameter) in self._names for parameter in self._optimized()):
            raise UsageError(
                "the optimizer holds no parameter of the model",
                remedy="make the optimizer from model.parameters()",
            )
