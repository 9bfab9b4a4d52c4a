"""A feed made to fit a model's inputs: names, ranks, dimensions, types; what is no input is kept apart."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from mpdeploy.errors import UsageError
from mpdeploy.runtime.lazy import under_names, without
from mpdeploy.runtime.runner import Array, Feed, TensorSpec

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Fitted:
    """A feed in exactly the types the model takes, the arrays that are no inputs (labels, say), and what changed."""

    feed: dict[str, Array]
    extras: Feed
    notes: tuple[str, ...]


def fit(feed: Feed, inputs: Sequence[TensorSpec], where: str) -> Fitted:
    """Return the feed cast to what ``inputs`` ask for; ``where`` names its source.

    A cast is made where it loses nothing, or where it is the model's own doing: a float to a narrower float.
    Raises ``UsageError`` for a missing input, a wrong rank or dimension, one symbol with two sizes, a type that
    cannot be cast without loss.
    """
    _require_names(feed, inputs, where)
    symbols: dict[str, tuple[int, str]] = {}
    notes: list[str] = []
    fitted = {}
    for spec in inputs:
        array = _cast(np.asarray(feed[spec.name]), spec, where, notes)
        _require_shape(array, spec, symbols, where)
        fitted[spec.name] = array
    return Fitted(fitted, without(feed, fitted), tuple(notes))


def renamed(feed: Feed, ours: Sequence[TensorSpec], theirs: Sequence[TensorSpec]) -> tuple[Feed, tuple[str, ...]]:
    """Return the feed under another model's names for the same inputs, with a note.

    They are taken by position if the models have as many inputs, no name of one is an input of the other, and the
    feed holds none of the other's; else the feed comes back as it is.
    """
    names, others = [spec.name for spec in ours], [spec.name for spec in theirs]
    if len(names) != len(others) or set(others) & ({*names} | set(feed)) or not set(names) <= set(feed):
        return feed, ()
    return under_names(feed, dict(zip(names, others, strict=True))), (
        "inputs have other names: they are fed by position",
    )


def _require_names(feed: Feed, inputs: Sequence[TensorSpec], where: str) -> None:
    missing = [spec for spec in inputs if spec.name not in feed]
    if not missing:
        return
    given = ", ".join(sorted(feed)) or "nothing"
    raise UsageError(
        f"the data lacks input '{missing[0].name}', it holds {given}",
        where=where,
        remedy=f"the model takes {', '.join(map(str, inputs))}: name the arrays so",
    )


def _require_shape(array: Array, spec: TensorSpec, symbols: dict[str, tuple[int, str]], where: str) -> None:
    if spec.shape is None:
        return
    if array.ndim != len(spec.shape):
        raise UsageError(
            f"input '{spec.name}' has {array.ndim} dimensions {list(array.shape)}, the model takes {spec}",
            where=where,
            remedy="reshape the array",
        )
    for axis, (size, wanted) in enumerate(zip(array.shape, spec.shape, strict=True)):
        if isinstance(wanted, int) and size != wanted:
            raise UsageError(
                f"dimension {axis} of input '{spec.name}' is {size}, the model takes {spec}",
                where=where,
                remedy=f"give arrays with {wanted} there, or export the model with a dynamic axis",
            )
        if isinstance(wanted, str):
            seen, owner = symbols.setdefault(wanted, (size, spec.name))
            if seen != size:
                raise UsageError(
                    f"dimension '{wanted}' is {seen} in input '{owner}' and {size} in input '{spec.name}'",
                    where=where,
                    remedy="inputs of one feed must agree",
                )


def _cast(array: Array, spec: TensorSpec, where: str, notes: list[str]) -> Array:
    if array.dtype == np.dtype("V2") and spec.dtype == "bfloat16":
        return array.view(_BFLOAT16)  # numpy's files forget the name of this type
    if array.dtype.name == spec.dtype or spec.dtype == "unknown":
        return array
    if spec.dtype == "string":
        if array.dtype.kind in "UO":
            with contextlib.suppress(ValueError, SystemError):  # not all that a file may hold are characters
                return array.astype(object)
        raise _unfit(array, spec, where)
    wanted = _BFLOAT16 if spec.dtype == "bfloat16" else np.dtype(spec.dtype)
    if not _is_number(array.dtype) or (_is_float(array.dtype) and not _is_float(wanted)):
        raise _unfit(array, spec, where)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(wanted)
        exact = array.dtype.kind == "b" or bool(
            np.array_equal(cast.astype(array.dtype), array, equal_nan=_is_float(array.dtype))
        )
    if not exact and not _is_float(array.dtype):
        raise _unfit(array, spec, where)
    kind = "exactly" if exact else "with rounding"
    notes.append(f"input '{spec.name}' was cast from {array.dtype.name} to {spec.dtype}, {kind}")
    return cast


def _is_float(dtype: "np.dtype[np.generic]") -> bool:
    return dtype.kind == "f" or dtype == _BFLOAT16


def _is_number(dtype: "np.dtype[np.generic]") -> bool:
    return dtype.kind in "biuf" or dtype == _BFLOAT16


def _unfit(array: Array, spec: TensorSpec, where: str) -> UsageError:
    return UsageError(
        f"input '{spec.name}' is {array.dtype.name}, which cannot become {spec.dtype} without loss",
        where=where,
        remedy=f"the model takes {spec}",
    )
