"""Weights that tell when somebody has edited them."""

from typing import Any, TypeVar

import torch
from torch import nn

_Own = TypeVar("_Own", bound="_Watched")


class _Watched(nn.Parameter):
    """A parameter that knows whether somebody asked for its ``data``, and may have written without a trace.

    Writes of other kinds show in the tensor's version counter.  Copies and pickles are plain parameters.
    """

    exposed = False
    before: torch.Tensor | None = None  # what it was when somebody asked, as far as it was worth a copy

    @classmethod
    def made_of(cls: type[_Own], parameter: nn.Parameter) -> _Own:
        """Turn ``parameter`` itself into one: whoever holds it goes on holding it."""
        parameter.__class__ = cls
        made: Any = parameter
        return made  # type: ignore[no-any-return]

    @property
    def data(self) -> torch.Tensor:
        """The values, outside of autograd."""
        self._expose()
        return torch.Tensor.data.__get__(self)  # type: ignore[attr-defined,no-any-return]

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        self._expose()
        torch.Tensor.data.__set__(self, values)  # type: ignore[attr-defined]

    def cover(self) -> None:
        """Forget that somebody has asked."""
        self.exposed, self.before = False, None

    def _expose(self) -> None:
        self.exposed = True

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


class MasterWeight(_Watched):
    """The FP32 weight behind a low-precision one: what an optimizer moves."""


class LowWeight(_Watched):
    """A low-precision parameter of a model, and the master behind it.

    What is copied into it, as ``load_state_dict`` does, reaches the master with all its digits.
    """

    master: MasterWeight | None = None

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> "LowWeight":
        """Copy values into the parameter, rounded, and into its master, not rounded."""
        super().copy_(source, non_blocking)
        if self.master is not None:
            with torch.no_grad():
                self.master.copy_(source, non_blocking)
        return self

    def _expose(self) -> None:
        if not self.exposed and torch._C._len_torch_dispatch_stack() == 0:  # else it may be traced
            self.before = self.detach().clone()
        self.exposed = True
