"""What the engine does not take, and why."""

import inspect
from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.optim import LBFGS, SGD, Optimizer

from mpdeploy.amp.levels import AmpConfig
from mpdeploy.amp.weights import LowWeight
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import LOW_FORMATS, Format

_LOW = {torch.float16: "fp16", torch.bfloat16: "bf16"}


def refuse_unfit(model: nn.Module, optimizers: Sequence[Optimizer], config: AmpConfig) -> None:
    """Raise ``UsageError`` if the model's weights or an optimizer cannot work in this configuration."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise UsageError(
                f"`{name}` of a lazy module has no shape yet", remedy="run the model once before making the engine"
            )
    for name, parameter in model.named_parameters():
        low = _LOW.get(parameter.dtype)
        if low and parameter.requires_grad and not (low == config.weights.value and config.masters):
            raise UsageError(
                f"the weight `{name}` is given in {low}: what FP32 held is gone, and updates would round away",
                remedy=f"give the model in FP32, or train it at {low}-master, which makes FP32 masters of its weights",
            )
    if config.weights in LOW_FORMATS and any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise UsageError(
            f"weights turn into {config.weights.value} here, and DistributedDataParallel knows them in FP32",
            remedy="wrap the model in DistributedDataParallel after making the engine",
        )
    if not optimizers:
        raise UsageError("there is no optimizer", remedy="make one from model.parameters()")
    own = {id(parameter) for parameter in model.parameters()}
    own |= {id(p.master) for p in model.parameters() if isinstance(p, LowWeight)}  # behind which an engine put it
    for optimizer in optimizers:
        if isinstance(optimizer, LBFGS):
            raise UsageError(
                "LBFGS evaluates the loss inside its step, where it can be neither scaled nor skipped",
                remedy="use a first-order optimizer such as AdamW or SGD",
            )
        if _wants_closure(optimizer):
            raise UsageError(
                f"{type(optimizer).__name__}'s step needs a closure, and runs the backward pass itself",
                remedy="use an optimizer whose step() works from the gradients alone",
            )
        if config.master_weights and _hands_on(optimizer):
            raise UsageError(
                f"{type(optimizer).__name__} hands its steps to an inner optimizer, which would not see the masters",
                remedy=f"train at {config.compute.value}-mixed, or give the engine a plain optimizer",
            )
        if not any(id(parameter) in own for parameter in parameters_of([optimizer])):
            raise UsageError(
                "the optimizer holds no parameter of the model", remedy="make the optimizer from model.parameters()"
            )
        if config.weights is Format.FP16 and not config.masters:
            _refuse_vanishing_eps(optimizer)
        if config.weights in LOW_FORMATS and not config.masters:
            _refuse_idle_kernel(optimizer, config.weights)


def refuse_no_loss(loss: object) -> None:
    """Raise ``UsageError`` unless ``loss`` is a scalar tensor from which gradients flow."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else f"{loss!r:.40}"
        raise UsageError(f"the loss is {what}", remedy="return a tensor of one number, such as the mean")
    if not loss.requires_grad:
        raise UsageError("no gradient flows from the loss", remedy="compute it from the model's outputs, undetached")


def _wants_closure(optimizer: Optimizer) -> bool:
    # Of the class: schedulers put a function of their own in place of the instance's.
    _, *taken = inspect.signature(type(optimizer).step).parameters.values()
    return any(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in taken)


def _hands_on(optimizer: Optimizer) -> bool:
    """Whether the optimizer wraps another one that has groups of its own, as ZeroRedundancyOptimizer does."""
    inner = [value for value in vars(optimizer).values() if isinstance(value, Optimizer)]
    return any(
        group is not own for i in inner for group, own in zip(i.param_groups, optimizer.param_groups, strict=False)
    )


def _refuse_vanishing_eps(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        eps = group.get("eps")
        if isinstance(eps, float) and eps < Format.FP16.smallest_subnormal:
            raise UsageError(
                f"the optimizer's eps of {eps:g} is zero in fp16, and a zero gradient would divide by it",
                remedy="set eps=1e-4, or train at fp16-master, where the optimizer works in FP32",
            )


def _refuse_idle_kernel(optimizer: Optimizer, weights: Format) -> None:
    # https://github.com/pytorch/pytorch/issues/191763: up to torch 2.13 whole vectors of such weights stay as they are.
    for group in optimizer.param_groups if isinstance(optimizer, SGD) else ():
        if group.get("fused") and any(parameter.device.type == "cpu" for parameter in group["params"]):
            raise UsageError(
                f"torch's fused SGD leaves {weights.value} weights on a CPU unmoved, without a word",
                remedy=f"leave fused=True out, or train at {weights.value}-master, where it works in FP32",
            )


def parameters_of(optimizers: Sequence[Optimizer]) -> Iterable[torch.Tensor]:
    """Return the parameters that the optimizers update, each once, also if several update it."""
    found: dict[int, torch.Tensor] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            found.update((id(parameter), parameter) for parameter in group["params"])
    return found.values()
