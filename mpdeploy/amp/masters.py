"""FP32 master weights: the model holds and computes with low-precision weights, the optimizer updates FP32 ones.

An update smaller than half an ulp of a BF16 or FP16 weight would round away; in the FP32 master it adds up.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

# Their few weights scale and shift what the statistics were taken of; torch's kernels take them in FP32 beside
# a low-precision input, and nothing is gained by rounding them.
KEPT_FP32 = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


class MasterWeights:
    """The pairs of a low-precision parameter of the model and its FP32 master in the optimizer.

    Making one converts the model: parameters that an optimizer holds, except those of normalisation layers,
    become ``dtype``, and the optimizers' groups hold FP32 masters in their place, with options and any state
    kept.  Parameters that were ``dtype`` before get masters all the same.  Buffers, frozen parameters and those
    that no optimizer knows stay as they are.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], dtype: torch.dtype) -> None:
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        self._by_parameter: dict[int, nn.Parameter] = {}
        low = {id(parameter) for parameter in _to_round(model)}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for place, parameter in enumerate(group["params"]):
                    if id(parameter) in low:
                        group["params"][place] = self._split(parameter, optimizer, dtype)
        _repack(model)

    def master_of(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return the FP32 tensor that the optimizer updates for this parameter of the model."""
        return self._by_parameter.get(id(parameter), parameter)

    def collect_gradients(self) -> None:
        """Move the model's gradients to the masters in FP32, adding to what is there, and clear them."""
        for low, master in self._pairs:
            gradient, low.grad = low.grad, None
            if gradient is None:
                continue
            if master.grad is None:
                master.grad = gradient.to(master.dtype)
            elif gradient.is_sparse:
                master.grad = master.grad + gradient.to(master.dtype)
            else:
                master.grad.add_(gradient)

    @torch.no_grad()
    def publish(self) -> None:
        """Round the masters into the model's low-precision parameters."""
        if self._pairs:
            torch._foreach_copy_([low for low, _ in self._pairs], [master for _, master in self._pairs])

    @property
    def stand_ins(self) -> dict[int, nn.Parameter]:
        """The masters by the ids of the model's parameters that they stand behind."""
        return self._by_parameter

    def _split(self, parameter: nn.Parameter, optimizer: Optimizer, dtype: torch.dtype) -> nn.Parameter:
        master = self._by_parameter.get(id(parameter))  # of another optimizer that moves it, too
        if master is None:
            master = nn.Parameter(parameter.detach().to(torch.float32, copy=True))
            parameter.grad = None
            parameter.data = parameter.data.to(dtype)
            self._pairs.append((parameter, master))
            self._by_parameter[id(parameter)] = master
        if parameter in optimizer.state:
            optimizer.state[master] = optimizer.state.pop(parameter)
        return master


def round_weights(model: nn.Module, optimizers: Sequence[Optimizer], dtype: torch.dtype) -> None:
    """Make the weights that masters would be kept of ``dtype``, and with them the optimizers' state; no masters."""
    for parameter in _to_round(model):
        parameter.grad = None
        parameter.data = parameter.data.to(dtype)
    _repack(model)
    for optimizer in optimizers:
        optimizer.load_state_dict(optimizer.state_dict())  # casts what it holds to its parameters' dtypes


def _repack(model: nn.Module) -> None:
    """Put the weights of recurrent modules side by side again, as cuDNN wants them; does nothing on a CPU."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()


def _to_round(model: nn.Module) -> list[nn.Parameter]:
    kept = set()
    for module in model.modules():
        if isinstance(module, KEPT_FP32):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.float()  # in case the whole model was given in low precision
                kept.add(id(parameter))
    return [p for p in model.parameters() if p.is_floating_point() and p.requires_grad and id(p) not in kept]
