"""Low-precision weights that tell when somebody has edited them."""

from typing import Any, cast

import torch
from torch import nn


class LowWeight(nn.Parameter):
    """A low-precision parameter of a model, and the FP32 master behind it.

    What is copied into it, as ``load_state_dict`` does, reaches the master with all its digits.  Whoever asks for
    ``data`` may write without a trace in the version counter; ``exposed`` tells that somebody has.  Copies and
    pickles of a model hold plain parameters' values and no master.
    """

    master: nn.Parameter | None = None
    exposed = False

    @classmethod
    def made_of(cls, parameter: nn.Parameter, master: nn.Parameter) -> "LowWeight":
        """Turn ``parameter`` itself into one: whoever holds it goes on holding it."""
        parameter.__class__ = cls
        made = cast(LowWeight, parameter)
        made.master = master
        return made

    @property
    def data(self) -> torch.Tensor:
        """The values, outside of autograd."""
        self.exposed = True
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined,no-any-return]

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        self.exposed = True
        torch.Tensor.data.__set__(self, values)  # type: ignore[attr-defined]

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> "LowWeight":
        """Copy values into the parameter, rounded, and into its master, not rounded."""
        super().copy_(source, non_blocking)
        if self.master is not None:
            with torch.no_grad():
                self.master.copy_(source, non_blocking)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """Return a plain parameter of the same values."""
        if id(self) not in memo:
            values = self.detach().clone(memory_format=torch.preserve_format)
            memo[id(self)] = nn.Parameter(values, self.requires_grad)
        copied: nn.Parameter = memo[id(self)]
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a plain parameter."""
        plain: Any = nn.Parameter(self.detach(), self.requires_grad)
        return plain.__reduce_ex__(protocol)
