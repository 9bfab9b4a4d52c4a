"""Optimizer momentum that rests in a low-precision format between steps."""

from collections.abc import Iterator, Sequence

import torch
from torch.optim import Optimizer

# The first moment is a mean of gradients: losing its low bits is like noise in the gradients.  The second moment
# (`exp_avg_sq`) is not among these: it moves by a thousandth of itself, less than a low format's half ulp.
_FIRST_MOMENTS = ("momentum_buffer", "exp_avg")


class Momentum:
    """The first moments of some optimizers, in ``dtype`` between steps and in FP32 during them."""

    def __init__(self, optimizers: Sequence[Optimizer], dtype: torch.dtype) -> None:
        self._optimizers = optimizers
        self._dtype = dtype
        self.rest()

    def wake(self) -> None:
        """Bring the moments to FP32, for a step."""
        self._convert(torch.float32)

    def rest(self) -> None:
        """Round the moments to the format that they rest in."""
        self._convert(self._dtype)

    def _convert(self, dtype: torch.dtype) -> None:
        for state in self._states():
            for name in _FIRST_MOMENTS:
                moment = state.get(name)
                if isinstance(moment, torch.Tensor) and moment.is_floating_point():  # complex ones stay as they are
                    state[name] = moment.to(dtype)

    def _states(self) -> Iterator[dict[str, object]]:
        if self._dtype != torch.float32:
            for optimizer in self._optimizers:
                yield from optimizer.state.values()
