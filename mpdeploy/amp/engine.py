"""The engine: autocast, loss scaling and master weights around a model and its optimizers."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from mpdeploy.amp.arithmetic import autocast, products
from mpdeploy.amp.beginning import Beginning
from mpdeploy.amp.dtypes import TORCH_DTYPES, widened
from mpdeploy.amp.faults import missing_kernel_explained, mixing_explained, stop_if_hopeless
from mpdeploy.amp.fp32_modules import Fp32Modules
from mpdeploy.amp.gradients import clipping, look, scale_, unscale_, values_of
from mpdeploy.amp.holding import ModelWeights
from mpdeploy.amp.levels import AmpConfig, Level
from mpdeploy.amp.losses import LossScales
from mpdeploy.amp.masters import MasterWeights, repack, round_weights, weights_to_round
from mpdeploy.amp.momentum import Momentum
from mpdeploy.amp.observer import StepObserver
from mpdeploy.amp.refusals import refuse_no_loss, refuse_unfit
from mpdeploy.amp.result import LossOutcome, Skip, StepResult
from mpdeploy.amp.rollback import BufferKeeper
from mpdeploy.amp.scaling import ScaleState
from mpdeploy.amp.state import read_state, saved_state, take_over_optimizers
from mpdeploy.amp.true_units import Gradients
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

    Between ``backward()`` and ``step()`` gradients are in true units, in FP32 where the optimizer works in FP32, on
    ``model.parameters()`` and in the optimizers' groups alike: look at them, clip them, change them.  Weights may be
    edited between steps on either side, too.

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
        self._fp32 = Fp32Modules(model, self.config.fp32_modules)
        self._masters = self._converted()
        self._momentum = Momentum(self._optimizers, TORCH_DTYPES[self.config.momentum])
        self._weights = ModelWeights(model, self._masters)
        self._gradients = Gradients(model, self._optimizers, self._masters)
        self._buffers, self._watch = BufferKeeper(model), Watch(model)
        self._beginning = Beginning(model, self._buffers.remember, self._begin_step)
        self._flags: dict[str, torch.Tensor] = {}  # of each loss of this step, whether its gradients overflowed
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
        """Run the model's forward pass inside: autocast in the level's compute format.

        A pass without gradients, or with the whole model in evaluation mode, is an evaluation and begins no step.
        """
        if torch.is_grad_enabled():
            self._take_edits()
        else:
            self._masters.show()
        self._gradients.look_out()
        explained = mixing_explained("forward") if self.config.weights in LOW_FORMATS else contextlib.nullcontext()
        with (
            self._beginning.forward(),
            explained,
            missing_kernel_explained(self.config.compute),
            autocast(self._device.type, self.config.compute),
            self._fp32.active(),
        ):
            yield

    def backward(
        self,
        loss: torch.Tensor,
        of: str | None = None,
        *,
        retain_graph: bool | None = None,
        create_graph: bool = False,
        inputs: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """Add the gradients of ``loss``, a scalar, to those of this step, in true units.

        ``of`` names the loss where there are several; without it, it is the first.  The other options are those of
        ``torch.Tensor.backward``: several losses of one forward pass need ``retain_graph`` but for the last,
        ``inputs`` are the only tensors whose gradients it adds to, and come in true units, too.  As in torch,
        gradients also reach parameters of other models that the loss depends on; clear those before their turn.

        Raises ``UsageError`` if the loss is no scalar, or no gradient flows from it.
        """
        refuse_no_loss(loss)
        name, scale = self._scales.named(of)
        if self._observer:
            self._observer.saw_loss(loss.detach())
        self._watch.saw("the loss", loss)
        self._beginning.backward()
        if not self._gradients.any_present():
            self._flags = {}  # somebody has cleared them since
        flag = self._flags.setdefault(name, torch.zeros((), device=loss.device))
        with (
            self._gradients.adding(scale, flag, apart=self._scales.several, inputs=inputs or ()),
            products(self._device.type, self.config.compute),
            self._fp32.active(),
            mixing_explained("backward"),
        ):
            scaled = widened(loss) * scale  # in FP16 the product would be infinite
            torch.autograd.backward(scaled, None, retain_graph, create_graph, inputs=inputs or None)

    def unscale(self) -> None:
        """Take note of which gradients are not finite before you change them, as clamping would hide it.

        They are in true units without it; at FP16 levels ``backward()`` takes the note.
        """
        flag = self._flags.setdefault(self._scales.named(None)[0], torch.zeros((), device=self._device))
        unscale_(values_of(self._gradients.present()), 1.0, flag)

    def step(self, *, clip_norm: float | None = None) -> StepResult:
        """Apply this step's gradients and clear them; return what happened.

        With ``clip_norm`` the gradients are first scaled down to that 2-norm, in true units, if they exceed it.
        If any gradient is infinite or NaN, nothing is applied: parameters, optimizer state and buffers are then
        what they were before the step's first ``forward()``.

        Raises ``UsageError`` if there are no gradients or the norm is not positive, and ``TrainingDiverged`` if too
        many steps were skipped in a row or the loss scale is at its floor; that skipped step, too, has left nothing
        behind.
        """
        parameters = self._gradients.present()
        if not parameters:
            raise UsageError("a step without gradients", remedy="call backward(loss) before step()")
        if clip_norm is not None and not clip_norm > 0:
            raise UsageError(f"gradients cannot be clipped to a norm of {clip_norm}", remedy="choose a positive one")
        self._take_edits()
        if self._observer:
            self._show(self._observer, parameters)
        flags = self._flags or {self._scales.named(None)[0]: torch.zeros((), device=self._device)}
        seen = look(parameters, list(flags.values()), self._group)
        overflowed = [name for name, raised in zip(flags, seen.flagged, strict=True) if raised]
        if seen.norm is None and not overflowed:
            overflowed = list(flags)  # only together, or there is just one: all are to blame
        outcomes = self._scales.end_step(flags, overflowed)
        if seen.norm is not None and not overflowed:
            result = self._applied(parameters, seen.norm, clip_norm, outcomes)
        else:
            result = self._skipped(parameters, seen.nonfinite, outcomes)
        self._end_step()
        if self._observer:
            self._observer.end_step(result)
        stop_if_hopeless(result, self.config, exhausted=self._scales.exhausted, culprit=lambda: self._watch.culprit)
        self._watch.forget()
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of what the optimizers move, in the model and in their groups."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none)
        self._flags = {}

    def discard(self) -> None:
        """Give up the step that is under way, as after an exception: it leaves nothing behind, and no scale moves."""
        if self._beginning.has_passes:
            self._buffers.restore()
        self._end_step()
        self._watch.forget()

    def full_precision(self) -> contextlib.AbstractContextManager[None]:
        """Let the model hold its FP32 weights while the context lasts, to evaluate or save it.

        Low-precision weights without a master, frozen ones or all, are widened to FP32 for the time.
        """
        return self._weights.full_precision()

    def named_weights(self) -> dict[str, torch.Tensor]:
        """Return what training moves, by name: FP32 masters or the parameters themselves, floating-point buffers."""
        return self._weights.named()

    def named_buffers(self) -> dict[str, torch.Tensor]:
        """Return the floating-point buffers that are part of the model's state, by name."""
        return self._weights.named_buffers()

    def holding(self, values: Mapping[str, torch.Tensor]) -> contextlib.AbstractContextManager[None]:
        """Let the model hold ``values``, by name, in place of its parameters and buffers while the context lasts."""
        return self._weights.holding(values)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all that a later run needs to go on: FP32 model state, optimizer states, loss scales.

        It loads with ``weights_only=True``.  Names are those of the model without wrappers.
        """
        return saved_state(
            self.config, self._weights.snapshot(), self._optimizers, self._scales.state_dict(), self._streak
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` returned, of the same model and optimizers.

        The level and its configuration may be others: what is saved is FP32.  Where only one of them scales losses,
        the scale starts anew.  Raises ``UsageError`` if something is missing, does not fit, or is not FP32.
        """
        saved = read_state(state, self._optimizers)
        model = self._weights.fitting(saved["model"])
        self._scales.load_state_dict(saved["scales"])
        self._end_step()
        self._weights.load(model)
        take_over_optimizers(self._optimizers, saved["optimizers"])
        self._momentum.rest()
        self._streak = saved["streak"]
        if self._streak:
            self._watch.arm()

    @property
    def _device(self) -> torch.device:
        return next(self._model.parameters()).device  # each time: the model may move

    def _converted(self) -> MasterWeights:
        """Convert the model as the level wants it."""
        config, dtype = self.config, TORCH_DTYPES[self.config.weights]
        if config.weights not in LOW_FORMATS:
            return MasterWeights(self._optimizers, None, ())
        to_round = weights_to_round(self._model, self._fp32.modules)
        masters = MasterWeights(self._optimizers, dtype if config.masters else None, to_round)
        if not config.masters:
            round_weights(to_round, self._optimizers, dtype)
        repack(self._model)
        return masters

    def _take_edits(self) -> None:
        """Take over what was done to the model and the optimizers since the engine last looked."""
        if self.config.masters:  # else low-precision weights are what the level is
            self._masters.admit(self._weights.names)
        if len(self._masters):
            self._masters.refuse_replaced({id(parameter) for parameter in self._model.parameters()})
            self._masters.refresh()

    def _begin_step(self) -> None:
        if self._observer:
            self._observer.begin_step()

    def _applied(
        self,
        parameters: Sequence[torch.Tensor],
        norm: float,
        clip_norm: float | None,
        outcomes: tuple[LossOutcome, ...],
    ) -> StepResult:
        clip = clipping(norm, clip_norm)
        scale_(values_of(parameters), clip)
        self._momentum.wake()
        for optimizer in self._optimizers:
            optimizer.step()
        self._momentum.rest()
        self._masters.publish()
        self._streak = 0
        self._watch.disarm()
        return StepResult(None, outcomes, norm, clipped=clip < 1)

    def _skipped(
        self, parameters: Sequence[torch.Tensor], nonfinite: Sequence[int], outcomes: tuple[LossOutcome, ...]
    ) -> StepResult:
        if self._beginning.has_passes:
            self._buffers.restore()
        self._streak += 1
        self._watch.arm()
        names = self._weights.names()
        bad = tuple(names.get(id(parameters[place]), "a parameter outside the model") for place in nonfinite)
        return StepResult(Skip.NONFINITE_GRADIENT, outcomes, None, nonfinite=bad, streak=self._streak)

    def _show(self, observer: StepObserver, parameters: Sequence[torch.Tensor]) -> None:
        names = self._weights.names()
        named = {names[id(p)]: g for p, g in zip(parameters, values_of(parameters), strict=True) if id(p) in names}
        observer.saw_gradients(named, self._scales.first.scale)

    def _end_step(self) -> None:
        self.zero_grad()
        self._beginning.end()
