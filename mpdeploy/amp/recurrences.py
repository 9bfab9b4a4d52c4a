"""Recurrent layers whose low-precision products a processor has no good kernel for: in FP32, rounded at their ends.

A recurrence is a chain of small products.  Taken one by one, each crosses from Python to a kernel and back; taken as
a whole in FP32 it is one call, and oneDNN's LSTM has a kernel of its own there.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import _VF
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_unflatten

_RECURRENCES = frozenset(getattr(_VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"))


class Fp32Recurrences(TorchFunctionMode):
    """While active, recurrences of ``dtype``, by their operands or by autocast, are computed in FP32.

    What goes in and what comes out is rounded to ``dtype`` all the same.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute one call; see the class."""
        named = kwargs or {}
        if func not in _RECURRENCES or not self._is_low(args[0]):
            return func(*args, **named)
        leaves, form = tree_flatten((args, named))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        rest = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]  # numbers and flags

        def run(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = iter(operands)
            filled = [next(given) if place is None else place for place in rest]
            positional, by_name = tree_unflatten(filled, form)
            with torch.autocast("cpu", enabled=False):
                return tuple(func(*positional, **by_name))

        rounded = [self._rounded_in_fp32(tensor) for tensor in tensors]
        results = _Whole.apply(run, *rounded)  # type: ignore[no-untyped-call]
        return tuple(result.to(self._dtype) for result in results)

    def _is_low(self, operand: torch.Tensor) -> bool:
        autocast = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == self._dtype
        return operand.dtype == self._dtype or (autocast and operand.is_floating_point())

    def _rounded_in_fp32(self, operand: torch.Tensor) -> torch.Tensor:
        return operand.to(self._dtype).float() if operand.is_floating_point() else operand


class _Whole(torch.autograd.Function):
    """A function whose operators run, forward and backward, outside of the modes that are active."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., tuple[torch.Tensor, ...]], *operands: torch.Tensor) -> Any:
        """Run it, and keep its own graph."""
        ctx.run = run
        ctx.save_for_backward(*operands)
        ctx.own = [operand.detach().requires_grad_(operand.requires_grad) for operand in operands]
        with torch.set_grad_enabled(any(operand.requires_grad for operand in operands)), _disable_current_modes():
            ctx.results = run(*ctx.own)
        return tuple(result.detach() for result in ctx.results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Go back through its graph; where that must itself be differentiable, through a new one."""
        again = torch.is_grad_enabled()
        own = list(ctx.saved_tensors) if again else ctx.own
        results = ctx.run(*own) if again else ctx.results
        wanted = [place for place, needed in enumerate(ctx.needs_input_grad[1:]) if needed]
        with contextlib.nullcontext() if again else _disable_current_modes():
            found = torch.autograd.grad(
                results, [own[place] for place in wanted], gradients,
                retain_graph=True, create_graph=again, allow_unused=True,
            )  # fmt: skip
        back: list[torch.Tensor | None] = [None] * len(own)
        for place, gradient in zip(wanted, found, strict=True):
            back[place] = gradient
        return None, *back
