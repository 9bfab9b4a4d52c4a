"""Gradients in true units between backward passes, whatever the loss was multiplied by."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from mpdeploy.amp.exchange import Exchange
from mpdeploy.amp.gradients import coalesce, scale_, unscale_, values_of
from mpdeploy.amp.masters import MasterWeights
from mpdeploy.amp.param_hooks import hooks_in_true_units
from mpdeploy.amp.refusals import parameters_of
from mpdeploy.amp.shared_gradients import SharedGradients


class Gradients:
    """The gradients of a model's parameters and of those that some optimizers move.

    They are in true units whenever a backward pass is not running: on ``model.parameters()`` and in the optimizers'
    groups alike.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], masters: MasterWeights) -> None:
        self._model, self._optimizers, self._masters = model, optimizers, masters
        self._exchange = Exchange(model)
        self._shared = SharedGradients(masters, optimizers, self._exchange)

    def look_out(self) -> None:
        """Look out for what exchanges gradients between processes: a forward pass follows."""
        if len(self._masters):
            self._exchange.look()

    def present(self) -> list[torch.Tensor]:
        """Return what the optimizers hold and has a gradient, sparse ones coalesced."""
        self._shared.settle()
        found = [parameter for parameter in parameters_of(self._optimizers) if parameter.grad is not None]
        coalesce(found)
        return found

    def any_present(self) -> bool:
        """Return whether anything that the optimizers hold has a gradient."""
        self._shared.settle()
        return any(parameter.grad is not None for parameter in parameters_of(self._optimizers))

    @contextlib.contextmanager
    def adding(
        self,
        scale: float,
        flag: torch.Tensor,
        *,
        apart: bool = False,
        inputs: Sequence[torch.Tensor] = (),
    ) -> Iterator[None]:
        """Run the backward pass of a loss multiplied by ``scale`` inside.

        ``flag`` is put to 1 if a gradient that an optimizer will see is not finite, at a scale or if ``apart``: then
        what this pass adds is judged by itself.  ``inputs`` are what it is taken for, where not for all.
        """
        self._shared.settle()
        judged = apart or scale != 1
        reached = self._reached(inputs) if judged else []
        earlier = _set_aside(reached) if apart else {}
        _scale(reached, scale)
        self._shared.settle()
        self._shared.before_backward()
        try:
            with hooks_in_true_units(self._model.parameters(), scale):
                yield
        finally:
            self._shared.after_backward()
            if judged:
                self._unscale(reached, scale, flag)
            _add(reached, earlier)
            self._shared.settle()

    def _reached(self, inputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors that hold a gradient after a backward pass, each once, masters in place of low weights."""
        found = {id(parameter): parameter for parameter in parameters_of(self._optimizers)}
        for tensor in (*self._model.parameters(), *inputs):
            own: torch.Tensor = self._masters.master_of(tensor)
            if own.requires_grad:
                found.setdefault(id(own), own)
        return list(found.values())

    def _unscale(self, reached: Sequence[torch.Tensor], scale: float, flag: torch.Tensor) -> None:
        moved = {id(parameter) for parameter in parameters_of(self._optimizers)}
        with_graph = [parameter for parameter in reached if parameter.grad is not None and parameter.grad.requires_grad]
        for parameter in with_graph:  # of create_graph=True: what is made of it must know of the division
            with torch.enable_grad():
                parameter.grad = torch.div(parameter.grad, scale)  # type: ignore[arg-type]
        done = {id(parameter) for parameter in with_graph}
        coalesce(reached)
        for units, wanted in ((1.0, done), (scale, {id(p) for p in reached} - done)):
            own = [p for p in reached if id(p) in wanted and id(p) in moved]
            others = [p for p in reached if id(p) in wanted and id(p) not in moved]
            unscale_(values_of(own), units, flag)
            scale_(values_of(others), 1 / units)


def _scale(parameters: Sequence[torch.Tensor], scale: float) -> None:
    if scale == 1:
        return
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.requires_grad:
            parameter.grad = parameter.grad.detach().clone()  # the graph that it belongs to keeps its own
    coalesce(parameters)
    scale_(values_of(parameters), scale)


def _set_aside(parameters: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    earlier = {}
    for parameter in parameters:
        if parameter.grad is not None:
            earlier[id(parameter)], parameter.grad = parameter.grad, None
    return earlier


def _add(parameters: Sequence[torch.Tensor], earlier: dict[int, torch.Tensor]) -> None:
    for parameter in parameters:
        held = earlier.get(id(parameter))
        if held is not None:
            parameter.grad = held if parameter.grad is None else held + parameter.grad
