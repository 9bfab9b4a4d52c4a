"""How processes that train together exchange gradients: what DistributedDataParallel does, and does not."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn
from torch._compile import _disable_dynamo
from torch.nn.parallel import DistributedDataParallel


class Exchange:
    """Knows whether the backward passes of a model average gradients over processes.

    DistributedDataParallel does so in the format of the weights, and not inside its ``no_sync()``.  An engine is
    made of the model before that is wrapped, so the wrapper is met on the way, in a forward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._met: DistributedDataParallel | None = None
        self._looking = False

    @property
    def together(self) -> bool:
        """Whether there are processes to exchange with."""
        return distributed.is_available() and distributed.is_initialized()

    @property
    def held_back(self) -> bool:
        """Whether backward passes at present leave gradients to this process: ``no_sync()``."""
        return self._met is not None and not self._met.require_backward_grad_sync

    def look(self) -> None:
        """Look out for the wrapper from now on."""
        if not self._looking and self.together:
            self._looking = True
            self._model.register_forward_pre_hook(_Meeting(self))

    def meet(self, wrapper: DistributedDataParallel | None) -> None:
        """Remember the wrapper in whose forward pass the model is."""
        self._met = wrapper or self._met

    def average(self, gradients: Sequence[torch.Tensor | None], like: Sequence[torch.Tensor]) -> list[Any]:
        """Return gradients averaged over the processes; None where no process has one."""
        if self._met is None or not like:
            return list(gradients)
        group = self._met.process_group
        held = torch.tensor([float(g is not None) for g in gradients], device=like[0].device)
        distributed.all_reduce(held, distributed.ReduceOp.MAX, group=group)
        sums = [
            (torch.zeros_like(parameter) if gradient is None else gradient.to_dense()) if some else None
            for gradient, parameter, some in zip(gradients, like, held.tolist(), strict=True)
        ]
        waits = [distributed.all_reduce(own, group=group, async_op=True) for own in sums if own is not None]
        for wait in waits:
            wait.wait()
        size = distributed.get_world_size(group)
        return [own if own is None else own.div_(size) for own in sums]


class _Meeting:
    """The hook that meets the wrapper; of a copied or saved model it does nothing."""

    def __init__(self, exchange: Exchange | None) -> None:
        self._exchange = exchange

    @_disable_dynamo
    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if self._exchange is not None:
            self._exchange.meet(getattr(DistributedDataParallel, "_active_ddp_module", None))

    def __reduce__(self) -> Any:
        return _Meeting, (None,)
