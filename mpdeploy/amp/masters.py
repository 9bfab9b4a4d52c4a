"""FP32 master weights: the model holds and computes with low-precision weights, the optimizer updates FP32 ones.

An update smaller than half an ulp of a BF16 or FP16 weight would round away; in the FP32 master it adds up.
"""

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

# Their few weights scale and shift what the statistics were taken of; torch's kernels take them in FP32 beside
# a low-precision input, and nothing is gained by rounding them.
_KEPT_FP32 = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


class MasterWeights:
    """The pairs of a low-precision parameter of the model and its FP32 master in the optimizer.

    Making one converts the model: parameters that an optimizer holds, except those of normalisation layers,
    become ``dtype``, and the optimizers' groups hold FP32 masters in their place, with options and any state
    kept.  Buffers, frozen parameters and those that no optimizer knows stay FP32.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], dtype: torch.dtype) -> None:
        kept = {
            id(parameter)
            for module in model.modules()
            if isinstance(module, _KEPT_FP32)
            for parameter in module.parameters(recurse=False)
        }
        own = {id(parameter) for parameter in model.parameters()}
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for place, parameter in enumerate(group["params"]):
                    low = id(parameter) in own - kept and parameter.dtype == torch.float32
                    if low and parameter.requires_grad:
                        group["params"][place] = self._split(parameter, optimizer, dtype)
        self._by_parameter = {id(low): master for low, master in self._pairs}

    def master_of(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the FP32 tensor that the optimizer updates for this parameter of the model."""
        return self._by_parameter.get(id(parameter), parameter)

    def collect_gradients(self) -> None:
        """Move the model's gradients to the masters in FP32, adding to what is there, and clear them."""
        for low, master in self._pairs:
            if low.grad is None:
                continue
            if master.grad is None:
                master.grad = low.grad.to(master.dtype)
            else:
                master.grad.add_(low.grad)
            low.grad = None

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model's low-precision parameters."""
        if self._pairs:
            torch._foreach_copy_([low for low, _ in self._pairs], [master for _, master in self._pairs])

    @contextlib.contextmanager
    def in_place_of_low(self) -> Iterator[None]:
        """Let the model hold the masters themselves while the context lasts: no copy, no rounding."""
        held = [low.data for low, _ in self._pairs]
        for low, master in self._pairs:
            low.data = master.data
        try:
            yield
        finally:
            for (low, _), data in zip(self._pairs, held, strict=True):
                low.data = data

    def _split(self, parameter: nn.Parameter, optimizer: Optimizer, dtype: torch.dtype) -> nn.Parameter:
        master = nn.Parameter(parameter.detach().clone())
        parameter.grad = None
        parameter.data = parameter.data.to(dtype)
        if parameter in optimizer.state:
            optimizer.state[master] = optimizer.state.pop(parameter)
        self._pairs.append((parameter, master))
        return master
