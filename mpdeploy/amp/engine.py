"""The engine: autocast, loss scaling and master weights around a model and its optimizers."""

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from mpdeploy.amp.agreement import agreed_norm
from mpdeploy.amp.arithmetic import autocast, products
from mpdeploy.amp.dtypes import TORCH_DTYPES, is_low, widened
from mpdeploy.amp.faults import missing_kernel_explained, mixing_explained, stop_if_hopeless
from mpdeploy.amp.gradients import is_finite, scale_, total_norm, values_of
from mpdeploy.amp.levels import AmpConfig, Level
from mpdeploy.amp.losses import LossScales
from mpdeploy.amp.masters import MasterWeights, round_weights
from mpdeploy.amp.momentum import Momentum
from mpdeploy.amp.observer import StepObserver
from mpdeploy.amp.refusals import parameters_of, refuse_no_loss, refuse_unfit
from mpdeploy.amp.result import Skip, StepResult
from mpdeploy.amp.rollback import BufferKeeper
from mpdeploy.amp.scaling import ScaleState
from mpdeploy.amp.slots import Slots
from mpdeploy.amp.state import check_state
from mpdeploy.amp.watch import Watch
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import LOW_FORMATS


class Engine:
    """Trains ``model`` in the given precision; the optimizers step together or not at all.

    ``precision`` is a level, the word for one, or a configuration of your own.

    A step is: ``forward()`` around the model's call, ``backward(loss)`` once or, to accumulate gradients or for
    several losses, more often, then ``step()``.  The loss belongs outside ``forward()``, on FP32 outputs: losses
    are where FP16 overflows first.  At a level with master weights the model is converted here, and the
    optimizers' groups hold FP32 masters from here on.

    ``losses`` names several losses that each have a scale of their own.  With ``group``, its processes agree on
    each step whether the gradients are finite.  ``observer`` looks on.

    Raises ``UsageError`` for weights or optimizers that cannot work in the precision.  Warns with
    ``RuntimeWarning`` of a precision that is a risk in itself.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        precision: Level | AmpConfig | str,
        *,
        losses: Sequence[str] = ("loss",),
        group: ProcessGroup | None = None,
        observer: StepObserver | None = None,
    ) -> None:
        self.config = AmpConfig.of(precision)
        self._model = model
        self._optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        refuse_unfit(model, self._optimizers, self.config)
        if self.config.risk:
            warnings.warn(self.config.risk, RuntimeWarning, stacklevel=2)
        self._scales = LossScales(losses, self.config.scaling)
        self._group, self._observer = group, observer
        weights = TORCH_DTYPES[self.config.weights]
        self._masters = MasterWeights(model, self._optimizers if self.config.master_weights else [], weights)
        if not self.config.masters:
            round_weights(model, self._optimizers, weights)
        self._momentum = Momentum(self._optimizers, TORCH_DTYPES[self.config.momentum])
        self._names = {id(self._masters.master_of(p)): name for name, p in model.named_parameters()}
        self._slots = Slots(model)
        self._buffers, self._watch = BufferKeeper(model), Watch(model)
        self._mid_step = False
        self._streak = 0

    @property
    def scale(self) -> ScaleState:
        """The state of the (first) loss's scale; its ``scale`` is 1 at a level without one."""
        return self._scales.first

    @property
    def streak(self) -> int:
        """How many steps in a row, the newest the last, were skipped."""
        return self._streak

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Run the model's forward pass inside: autocast in the level's compute format."""
        if not self._mid_step:
            self._buffers.remember()
            self._watch.begin_step()
            if self._observer:
                self._observer.begin_step()
            self._mid_step = True
        explained = mixing_explained("forward") if self.config.weights in LOW_FORMATS else contextlib.nullcontext()
        with explained, missing_kernel_explained(self.config.compute), autocast(self._device, self.config.compute):
            yield

    def backward(self, loss: torch.Tensor, of: str | None = None) -> None:
        """Add the gradients of ``loss``, a scalar, to those of this step.

        ``of`` names the loss where there are several; without it, it is the first.  Raises ``UsageError`` if the
        loss is no scalar, or no gradient flows from it.
        """
        refuse_no_loss(loss)
        if self._observer:
            self._observer.saw_loss(loss.detach())
        if self._streak and not is_finite(loss):
            self._watch.blame("the loss")
        scale = self._scales.take_part(of)
        earlier = self._set_gradients_aside() if self._scales.several else {}
        with products(self._device, self.config.compute), mixing_explained("backward"):
            torch.autograd.backward(loss * scale)
        self._masters.collect_gradients()
        if self._scales.several:
            self._take_apart(of, scale, earlier)

    def step(self, *, clip_norm: float | None = None) -> StepResult:
        """Apply this step's gradients and clear them; return what happened.

        With ``clip_norm`` the gradients are first scaled down to that 2-norm, in true units, if they exceed it.
        If any gradient is infinite or NaN, nothing is applied: parameters, optimizer state and buffers are then
        what they were before the step's first ``forward()``.

        Raises ``UsageError`` if there are no gradients or the norm is not positive, and ``TrainingDiverged`` if too
        many steps were skipped in a row or the loss scale is at its floor; that skipped step, too, has left nothing
        behind.
        """
        parameters = [p for p in parameters_of(self._optimizers) if p.grad is not None]
        if not parameters:
            raise UsageError("a step without gradients", remedy="call backward(loss) before step()")
        if clip_norm is not None and not clip_norm > 0:
            raise UsageError(f"gradients cannot be clipped to a norm of {clip_norm}", remedy="choose a positive one")
        gradients = values_of(parameters)
        unit = 1.0 if self._scales.several else self._scales.first.scale
        if not self._scales.several:
            self._show(parameters, gradients, unit)
        norm = agreed_norm(total_norm(gradients), self._group) / unit
        outcomes = self._scales.end_step(finite=math.isfinite(norm))
        if math.isfinite(norm):
            clip = min(1.0, clip_norm / (norm + 1e-6)) if clip_norm is not None else 1.0
            scale_(gradients, clip / unit)
            self._momentum.wake()
            for optimizer in self._optimizers:
                optimizer.step()
            self._momentum.rest()
            self._masters.publish()
            self._streak = 0
            self._watch.disarm()
            result = StepResult(None, outcomes, norm, clipped=clip < 1)
        else:
            bad = [p for p, g in zip(parameters, gradients, strict=True) if not is_finite(g)]
            self._buffers.restore()
            self._streak += 1
            self._watch.arm()
            names = tuple(self._names.get(id(p), "a parameter outside the model") for p in bad)
            result = StepResult(Skip.NONFINITE_GRADIENT, outcomes, None, nonfinite=names, streak=self._streak)
        self._clear()
        if self._observer:
            self._observer.end_step(result)
        stop_if_hopeless(result, self.config, exhausted=self._scales.exhausted, culprit=self._watch.culprit)
        return result

    @contextlib.contextmanager
    def full_precision(self) -> Iterator[None]:
        """Let the model hold its FP32 weights while the context lasts, to evaluate or save it.

        Low-precision weights without a master, frozen ones or all, are widened to FP32 for the time.
        """
        bare = [p for p in self._model.parameters() if is_low(p) and self._masters.master_of(p) is p]
        wide = {id(p): nn.Parameter(p.detach().float(), requires_grad=p.requires_grad) for p in bare}
        with self._slots.holding({**self._masters.stand_ins, **wide}):
            yield

    def named_weights(self) -> dict[str, torch.Tensor]:
        """Return what training moves, by name: FP32 masters or the parameters themselves, floating-point buffers."""
        parameters = {name: self._masters.master_of(p) for name, p in self._model.named_parameters()}
        return {**parameters, **self.named_buffers()}

    def named_buffers(self) -> dict[str, torch.Tensor]:
        """Return the model's floating-point buffers by name."""
        return {name: buffer for name, buffer in self._model.named_buffers() if buffer.is_floating_point()}

    @contextlib.contextmanager
    def holding(self, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Let the model hold ``values``, by name, in place of its parameters and buffers while the context lasts."""
        own = [*self._model.named_parameters(), *self._model.named_buffers()]
        held = [(tensor, tensor.data) for name, tensor in own if name in values]
        for name, tensor in own:
            if name in values:
                tensor.data = values[name].to(tensor.dtype)
        try:
            yield
        finally:
            for tensor, data in held:
                tensor.data = data

    def state_dict(self) -> dict[str, Any]:
        """Return all that a later run needs to go on: FP32 model state, optimizer states, loss scales.

        Loads with ``weights_only=True``.
        """
        with self.full_precision():
            model = {name: widened(tensor.detach()).clone() for name, tensor in self._model.state_dict().items()}
        return {
            "config": repr(self.config),
            "model": model,
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "scales": self._scales.state_dict(),
            "streak": self._streak,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` returned, of the same model, optimizers and level.

        Raises ``UsageError`` if something is missing, the weights are not FP32, or the configuration is another.
        """
        check_state(state, repr(self.config), len(self._optimizers))
        self._scales.load_state_dict(state["scales"])
        self._clear()
        self._model.load_state_dict(state["model"])  # rounds, exactly where there is no master
        if self.config.master_weights:
            with self.full_precision():
                self._model.load_state_dict(state["model"])
            self._masters.publish()
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self._momentum.rest()
        self._streak = state["streak"]
        if self._streak:
            self._watch.arm()

    @property
    def _device(self) -> str:
        return next(self._model.parameters()).device.type  # looked up each time: the model may move

    def _set_gradients_aside(self) -> dict[int, torch.Tensor]:
        earlier = {}
        for parameter in parameters_of(self._optimizers):
            if parameter.grad is not None:
                earlier[id(parameter)], parameter.grad = parameter.grad, None
        return earlier

    def _take_apart(self, of: str | None, scale: float, earlier: dict[int, torch.Tensor]) -> None:
        """Judge and unscale the gradients of one loss, then add the earlier ones; all are FP32 and in true units."""
        own = [p for p in parameters_of(self._optimizers) if p.grad is not None]
        gradients = values_of(own)
        if gradients:
            self._show(own, gradients, scale)
            self._scales.saw(of, agreed_norm(total_norm(gradients), self._group))
            scale_(gradients, 1 / scale)
        for parameter in parameters_of(self._optimizers):
            if id(parameter) in earlier:
                held = earlier[id(parameter)]
                parameter.grad = held if parameter.grad is None else parameter.grad + held

    def _show(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], scale: float) -> None:
        if self._observer:
            named = {self._names[id(p)]: g for p, g in zip(parameters, gradients, strict=True) if id(p) in self._names}
            self._observer.saw_gradients(named, scale)

    def _clear(self) -> None:
        self._model.zero_grad(set_to_none=True)
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._mid_step = False
