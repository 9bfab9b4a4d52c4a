"""What a model takes: a name, a dtype and a shape for each input."""

from dataclasses import dataclass

import numpy as np

from mpdeploy.errors import UsageError


@dataclass(frozen=True)
class TensorSpec:
    """One input of a model.

    ``dtype`` is numpy's name of the element type.  ``shape`` holds a size for each axis, or a name for an axis
    whose size may change; equal names, also across inputs, are equal sizes.  Raises ``UsageError`` if either is
    impossible.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise UsageError(f"`{self.name}` cannot name an input", remedy="use letters, digits and _")
        try:
            np.dtype(self.dtype)
        except TypeError as error:
            raise UsageError(
                f"input `{self.name}` has an unknown dtype `{self.dtype}`", remedy="use a numpy dtype's name"
            ) from error
        for size in self.shape:
            if isinstance(size, str) and not size.isidentifier():
                raise UsageError(f"`{size}` cannot name an axis of `{self.name}`", remedy="use letters and _")
            if isinstance(size, int) and size < 1:
                raise UsageError(f"input `{self.name}` has an axis of size {size}", remedy="use sizes from 1")

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(str(size) for size in self.shape)}]"

    def check(self, dtype: str, shape: tuple[int, ...], sizes: dict[str, int], where: str) -> None:
        """Raise ``UsageError`` if a tensor of ``dtype`` and ``shape`` is not this input.

        ``sizes`` holds the axis names that other inputs have fixed already, and receives this one's.
        """
        fits = dtype == self.dtype and len(shape) == len(self.shape)
        for expected, size in zip(self.shape, shape, strict=False):
            fits &= size == (sizes.setdefault(expected, size) if isinstance(expected, str) else expected)
        if not fits:
            given = f"{dtype}[{', '.join(str(size) for size in shape)}]"
            raise UsageError(f"input {self} was given {given}", where=where)
