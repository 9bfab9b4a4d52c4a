"""One gradient for a low-precision weight and its master: whoever looks at either sees it, in FP32.

``model.parameters()`` and the optimizer's groups hold different tensors at a level with masters.  Clipping, clearing
and editing work on whichever of them a loop iterates over, because their ``grad`` is the same tensor.
"""

import functools
from collections.abc import Callable, Sequence

import torch
from torch.optim import Optimizer

from mpdeploy.amp.exchange import Exchange
from mpdeploy.amp.masters import MasterWeights, Pair
from mpdeploy.errors import UsageError


class SharedGradients:
    """The gradients of pairs of weights: shared between backward passes, gathered after them."""

    def __init__(self, masters: MasterWeights, optimizers: Sequence[Optimizer], exchange: Exchange) -> None:
        self._masters, self._exchange = masters, exchange
        self._shared: dict[Pair, torch.Tensor] = {}
        self._local = False  # whether some processes' parts of gradients are still to be averaged
        for optimizer in optimizers:
            optimizer.zero_grad = _of_both(optimizer, masters)  # type: ignore[method-assign]

    def settle(self) -> None:
        """Take what somebody did to one of two gradients since for what was meant for both.

        Raises ``UsageError`` if they were replaced by different ones.
        """
        for pair in self._masters:
            low, master, shared = pair.low.grad, pair.master.grad, self._shared.get(pair)
            if low is master:
                continue
            if low is not shared and master is not shared and low is not None and master is not None:
                raise UsageError(
                    "a weight's gradient was replaced in the model and in the optimizer, by different ones",
                    remedy="change gradients either over model.parameters() or over the optimizer's groups",
                )
            cleared_and_replaced = low is None and master is not shared
            self._share(pair, master if low is shared or cleared_and_replaced else low)

    def before_backward(self) -> None:
        """Leave to the backward pass what it adds to."""
        if not self._exchange.together:
            for pair in self._masters:
                if pair.low.grad_dtype is not torch.float32:
                    pair.low.grad_dtype = torch.float32
            return
        # What is averaged must be in the format of the weights, and nothing else must be in it.
        if self._local and not self._exchange.held_back:
            self._average()
        for pair in self._masters:
            pair.low.grad, pair.low.grad_dtype = None, None

    def after_backward(self) -> None:
        """Gather in FP32 what the backward pass has added."""
        for pair in self._masters:
            gradient, earlier = pair.low.grad, pair.master.grad
            if not self._exchange.together:
                earlier = None  # autograd has added to it
            elif gradient is None:
                gradient, earlier = earlier, None
            self._share(pair, gradient, earlier)
        if self._exchange.together:
            self._local = self._exchange.held_back

    def _average(self) -> None:
        pairs = list(self._masters)
        averages = self._exchange.average([pair.master.grad for pair in pairs], [pair.master for pair in pairs])
        for pair, average in zip(pairs, averages, strict=True):
            pair.master.grad = average

    def _share(self, pair: Pair, gradient: torch.Tensor | None, earlier: torch.Tensor | None = None) -> None:
        if gradient is not None and gradient.dtype != pair.master.dtype:
            gradient = gradient.to(pair.master.dtype)
        if gradient is not None and earlier is not None:
            gradient = earlier + gradient if gradient.is_sparse or earlier.requires_grad else earlier.add_(gradient)
        if pair.low.grad is not None and pair.low.grad is not gradient:
            pair.low.grad = None
        if pair.low.grad_dtype is not None and pair.low.grad_dtype is not torch.float32:
            pair.low.grad_dtype = None  # of any format
        pair.low.grad = pair.master.grad = gradient
        if gradient is None:
            self._shared.pop(pair, None)
        else:
            self._shared[pair] = gradient


def _of_both(optimizer: Optimizer, masters: MasterWeights) -> Callable[..., None]:
    """Return the optimizer's ``zero_grad`` that clears the gradients of the model's weights as well."""
    zero_grad = optimizer.zero_grad

    @functools.wraps(zero_grad)
    def both(set_to_none: bool = True) -> None:
        zero_grad(set_to_none)
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for pair in masters:
            if id(pair.master) not in held or pair.low.grad is pair.master.grad:
                continue
            if set_to_none or pair.low.grad is None:
                pair.low.grad = None
            else:
                pair.low.grad.zero_()

    return both
