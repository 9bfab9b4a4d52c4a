"""What the engine does not take, and why."""

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.optim import LBFGS, Optimizer

from mpdeploy.amp.levels import AmpConfig
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format

_LOW = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def refuse_unfit(model: nn.Module, optimizers: Sequence[Optimizer], config: AmpConfig) -> None:
    """Raise ``UsageError`` if the model's weights or an optimizer cannot work in this configuration."""
    for name, parameter in model.named_parameters():
        low = _LOW.get(parameter.dtype)
        if low and not (low == config.weights.value and config.masters):
            raise UsageError(
                f"the weight `{name}` is given in {low}: what FP32 held is gone, and updates would round away",
                remedy=f"give the model in FP32, or train it at {low}-master, which makes FP32 masters of its weights",
            )
    if not optimizers:
        raise UsageError("there is no optimizer", remedy="make one from model.parameters()")
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        if isinstance(optimizer, LBFGS):
            raise UsageError(
                "LBFGS evaluates the loss inside its step, where it can be neither scaled nor skipped",
                remedy="use a first-order optimizer such as AdamW or SGD",
            )
        if not any(id(parameter) in own for parameter in parameters_of([optimizer])):
            raise UsageError(
                "the optimizer holds no parameter of the model", remedy="make the optimizer from model.parameters()"
            )
        if config.weights is Format.FP16 and not config.masters:
            _refuse_vanishing_eps(optimizer)


def _refuse_vanishing_eps(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        eps = group.get("eps")
        if isinstance(eps, float) and eps < Format.FP16.smallest_subnormal:
            raise UsageError(
                f"the optimizer's eps of {eps:g} is zero in fp16, and a zero gradient would divide by it",
                remedy="set eps=1e-4, or train at fp16-master, where the optimizer works in FP32",
            )


def parameters_of(optimizers: Sequence[Optimizer]) -> Iterable[torch.Tensor]:
    """Yield the parameters that the optimizers update."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
