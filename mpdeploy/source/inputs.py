"""What a foreign model takes: from ``--input`` words, from data, or from the names of its own parameters."""

import difflib
import inspect
import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mpdeploy.errors import UsageError
from mpdeploy.runtime.feeds import Feeds, is_answer
from mpdeploy.runtime.runner import Array
from mpdeploy.train.specs import TensorSpec

_SCANNED = 16  # feeds looked at for axes whose size changes
_BATCH = 4
_LENGTH = 32
_LARGEST = 2**31  # elements of a made-up example
_SIZE = re.compile(r"[0-9]{1,18}")
_SPELLED = re.compile(r"^[0-9]+x|x[0-9]+(x|$)")
_DTYPES = (
    "float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128",
)  # fmt: skip
_IDS = 2  # made-up integers stay below this: every vocabulary and every mask has them


@dataclass(frozen=True)
class Inputs:
    """The inputs with an example of each.  ``made_up``: the examples are random."""

    specs: tuple[TensorSpec, ...]
    examples: dict[str, torch.Tensor]
    made_up: bool


def parse_input(word: str) -> tuple[TensorSpec, tuple[int, ...]]:
    """Return what a word such as ``image:batch,3,224,224`` or ``ids:batch,length=128:int64`` says, with example sizes.

    An axis is a size, a name for one whose size may change, or NAME=SIZE with the size that the export tries.
    Raises ``UsageError`` for any other word.
    """
    name, _, rest = word.partition(":")
    shape_text, _, dtype = rest.partition(":")
    shape: list[int | str] = []
    sizes: list[int] = []
    for place, axis in enumerate(_axes(shape_text)):
        symbol, _, size = axis.strip().partition("=")
        if _SIZE.fullmatch(symbol) and not size:
            shape.append(int(symbol))
            sizes.append(int(symbol))
        elif symbol.isidentifier() and (_SIZE.fullmatch(size) or "=" not in axis):
            shape.append(symbol)
            sizes.append(int(size) if size else _LENGTH if place else _BATCH)
        else:
            raise UsageError(
                f"{axis!r} is not an axis in --input {word}",
                remedy="write NAME:SHAPE[:DTYPE] as in image:batch,3,224,224 or ids:batch,length=128:int64",
            )
    if ":" not in word:
        raise UsageError(f"--input {word} has no shape", remedy="write NAME:SHAPE[:DTYPE] as in image:batch,3,224,224")
    if dtype and dtype not in _DTYPES:
        near = difflib.get_close_matches(dtype.lower(), _DTYPES, 1)
        raise UsageError(
            f"unknown dtype {dtype!r} in --input {word}",
            remedy=f"did you mean {near[0]}?" if near else f"use one of {', '.join(_DTYPES)}",
        )
    return TensorSpec(name, dtype or "float32", tuple(shape)), tuple(sizes)


def _axes(text: str) -> list[str]:
    """The axes of ``batch,3,224,224``, or of ``1x3x224x224`` as `mpdeploy build --shapes` has it."""
    if "," not in text and _SPELLED.search(text):
        return text.split("x")
    return [axis for axis in text.split(",") if axis]


def find_inputs(module: Any, words: tuple[str, ...], data: Feeds | None, where: str) -> Inputs:
    """Return the inputs of a module: those of ``words``, or else those that ``data`` holds under its parameters' names.

    Examples come from the data's first feed, or are random.  Raises ``UsageError`` if neither tells, or the data
    do not fit.
    """
    if words:
        parsed = [parse_input(word) for word in words]
        specs = tuple(spec for spec, _ in parsed)
        if data is not None:
            return Inputs(specs, examples_in(specs, data), made_up=False)
        return Inputs(specs, _invented(parsed), made_up=True)
    if data is None:
        takes = ", ".join(p.name for p in _parameters(module)) or "what forward() takes"
        raise UsageError(
            "the file does not say what the model takes",
            where=where,
            remedy=f"name each input, as in --input image:batch,3,224,224, or give --data; forward() takes {takes}",
        )
    specs = _specs_from(_names_in(module, data, where), data)
    return Inputs(specs, examples_in(specs, data), made_up=False)


def parameter_names(module: Any) -> tuple[str, ...]:
    """Return the names under which ``module`` takes its arguments, in order; empty if it does not tell."""
    return tuple(p.name for p in _parameters(module))


def _parameters(module: Any) -> list[inspect.Parameter]:
    schema = getattr(getattr(module, "forward", None), "schema", None)  # what TorchScript has for a signature
    if schema is not None:
        return [
            inspect.Parameter(
                argument.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
            )
            for argument in schema.arguments[1:]
        ]
    try:
        signature = inspect.signature(module.forward)
    except (TypeError, ValueError, AttributeError):
        return []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in signature.parameters.values() if p.kind in plain]


def _names_in(module: Any, data: Feeds, where: str) -> list[str]:
    parameters = _parameters(module)
    first = next(iter(data))
    taken = {p.name for p in parameters}
    held = [name for name in first if name in taken or not is_answer(name)]
    named = [p.name for p in parameters if p.name in held]
    lacking = [p.name for p in parameters if p.default is p.empty and p.name not in held]
    if named and not lacking:
        return named
    if len(held) == 1 and len(lacking) <= 1:
        return held
    raise UsageError(
        f"the data holds {', '.join(sorted(held))}, the model takes {', '.join(p.name for p in parameters) or '?'}",
        where=where,
        remedy="name the inputs in the model's order, as in --input image:batch,3,224,224",
    )


def _specs_from(names: list[str], data: Feeds) -> tuple[TensorSpec, ...]:
    """The first axis is the batch; any other that changes from feed to feed is dynamic, too."""
    feeds = list(itertools.islice(data, _SCANNED))
    symbols: dict[tuple[int, ...], str] = {}
    specs = []
    for name in names:
        arrays = [np.asarray(feed[name]) for feed in feeds]
        first = arrays[0]
        if any(array.ndim != first.ndim for array in arrays):
            raise UsageError(f"`{name}` has different ranks in the data", where=data.name)
        shape: list[int | str] = []
        for axis in range(first.ndim):
            sizes = tuple(array.shape[axis] for array in arrays)
            if axis == 0:
                shape.append("batch")
            elif len(set(sizes)) > 1:
                shape.append(symbols.setdefault(sizes, f"{name}_{axis}"))
            else:
                shape.append(first.shape[axis])
        specs.append(TensorSpec(name, first.dtype.name, tuple(shape)))
    return tuple(specs)


def examples_in(specs: tuple[TensorSpec, ...], data: Feeds) -> dict[str, torch.Tensor]:
    """Return the inputs in the data's first feed; raise ``UsageError`` if one is lacking or does not fit."""
    label, feed = next(data.labelled())
    sizes: dict[str, int] = {}
    found = {}
    for spec in specs:
        if spec.name not in feed:
            raise UsageError(
                f"the data lacks input '{spec.name}', it holds {', '.join(sorted(feed))}",
                where=label,
                remedy="name the arrays as the inputs",
            )
        array = np.ascontiguousarray(feed[spec.name])
        if array.dtype.kind == "f" and np.dtype(spec.dtype).kind == "f":
            array = array.astype(spec.dtype)
        spec.check(array.dtype.name, array.shape, sizes, where=label)
        found[spec.name] = torch.from_numpy(array)
    return found


def _invented(parsed: list[tuple[TensorSpec, tuple[int, ...]]]) -> dict[str, torch.Tensor]:
    known: dict[str, int] = {}
    found: dict[str, torch.Tensor] = {}
    for spec, sizes in parsed:
        shape = tuple(
            size if isinstance(axis, int) else known.setdefault(axis, size)
            for axis, size in zip(spec.shape, sizes, strict=True)
        )
        if math.prod(shape) > _LARGEST:
            raise UsageError(
                f"--input {spec.name} would have {math.prod(shape):,} elements",
                remedy="name a dynamic axis, or give examples with --data",
            )
        found[spec.name] = torch.from_numpy(invented_array(replace(spec, shape=shape), seed=len(found)))
    return found


def invented_array(spec: TensorSpec, seed: int) -> Array:
    """Return random numbers for an input whose axes are all sizes: normal ones, or integers that any model takes."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(spec.dtype)
    shape = tuple(int(size) for size in spec.shape)
    if dtype.kind == "f":
        return np.asarray(random.standard_normal(shape)).astype(dtype)
    made = np.asarray(random.integers(0, _IDS, shape)).astype(dtype)
    if (dtype.kind == "b" or "mask" in spec.name.lower()) and made.ndim and made.shape[-1] > 1:
        made[..., 0], made[..., -1] = 0, 1  # whichever of them hides a position, each row keeps one
    return made
