"""Feeds of a wished batch size, from data or made up."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from mpdeploy.errors import UsageError
from mpdeploy.runtime.runner import Array, Feed, TensorSpec

_SEED = 0


def fixed_batch(inputs: Sequence[TensorSpec]) -> int | None:
    """Return the batch size that the inputs' first axes prescribe; None if they leave it open."""
    sizes = [spec.shape[0] for spec in inputs if spec.shape]
    fixed = [size for size in sizes if isinstance(size, int)]
    return fixed[0] if len(fixed) == len(sizes) and fixed else None


def feed_of_batch(inputs: Sequence[TensorSpec], batch: int, data: Feed | None, sizes: Mapping[str, int]) -> Feed:
    """Return a feed whose batch axes have length ``batch``: the open first axes, but for those that are another axis.

    With ``data`` its rows are repeated or cut; without, floats are normally distributed and integers are ones,
    and ``sizes`` gives the other open axes by name.  Raises ``UsageError`` for an axis whose size nobody knows, for a
    size of an axis that there is not or that counts the batch, and for data without rows.
    """
    others = {size for spec in inputs for size in (spec.shape or ())[1:] if isinstance(size, str)}
    if data is not None:
        return {
            spec.name: _with_rows(spec, np.asarray(data[spec.name]), batch, others)
            for spec in inputs
            if spec.name in data
        }
    _require_axes(inputs, others, sizes)
    random = np.random.default_rng(_SEED)
    return {spec.name: _made_up(spec, _shape(spec, batch, others, sizes), random) for spec in inputs}


def _require_axes(inputs: Sequence[TensorSpec], others: Collection[str], sizes: Mapping[str, int]) -> None:
    firsts = {spec.shape[0] for spec in inputs if spec.shape and isinstance(spec.shape[0], str)} - set(others)
    for name in sizes:
        if name in firsts:
            raise UsageError(
                f"axis {name!r} counts the batch", where=f"--dim {name}", remedy="give its size with --batch"
            )
        if name not in others:
            known = ", ".join(sorted(others)) or "none but the batch"
            raise UsageError(f"there is no dynamic axis {name!r}", where=f"--dim {name}", remedy=f"there are {known}")


def _with_rows(spec: TensorSpec, array: Array, batch: int, others: Collection[str]) -> Array:
    if not array.ndim or not spec.shape or isinstance(spec.shape[0], int) or spec.shape[0] in others:
        return array
    if not len(array):
        raise UsageError(f"the data's first feed has no rows of input '{spec.name}'", remedy="give at least one")
    return np.take(array, np.arange(batch) % len(array), axis=0)


def _shape(spec: TensorSpec, batch: int, others: Collection[str], sizes: Mapping[str, int]) -> tuple[int, ...]:
    if spec.shape is None:
        raise UsageError(f"the rank of input '{spec.name}' is unknown", remedy="give --data")
    shape = []
    for axis, size in enumerate(spec.shape):
        if isinstance(size, int):
            shape.append(size)
        elif size is not None and size in sizes:
            shape.append(sizes[size])
        elif axis == 0 and size not in others:
            shape.append(batch)
        else:
            hint = f"give --data, or --dim {size}=SIZE" if size else "give --data"
            raise UsageError(f"axis {axis} of input '{spec.name}' has no size", where=str(spec), remedy=hint)
    return tuple(shape)


def _made_up(spec: TensorSpec, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    if spec.dtype == "string":
        return np.full(shape, "", object)
    if spec.dtype.startswith(("float", "bfloat")):
        return random.standard_normal(shape).astype(np.float32)
    return np.ones(shape, np.dtype(spec.dtype))
