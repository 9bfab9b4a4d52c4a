"""Does the ONNX file compute what the torch module computes?"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mpdeploy.errors import ModelError, MpdeployError
from mpdeploy.runtime.attention import plain_attention
from mpdeploy.source.loaded import LoadedModule

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
RunOnnx = Callable[[Path, Arrays], Arrays]

# FP32 kernels differ in the order of their sums; over some hundred layers that stays far below this.
TOLERANCE = 1e-3
# An output that moves about as much under a nudge of its inputs hangs on the order of nearly equal values (a top-k).
_NUDGE, _NUDGES, _ALIKE = 4e-7, 4, 4.0
_ORDERING = {torch.ops.aten.topk, torch.ops.aten.sort, torch.ops.aten.argsort, torch.ops.aten.argmax}


@dataclass(frozen=True)
class ExportCheck:
    """How well the ONNX model agrees with the torch module.

    ``worst`` is the largest norm-relative difference ‖onnx − torch‖ / ‖torch‖ over all outputs and feeds;
    ``sizes`` tells for each feed the size of every dynamic axis.  ``notes`` name what could not be held against
    torch, and why.
    """

    worst: float
    sizes: tuple[dict[str, int], ...]
    notes: tuple[str, ...] = ()


def check_export(loaded: LoadedModule, path: Path, run: RunOnnx) -> ExportCheck:
    """Compare the ONNX file with the torch module on its examples, at several sizes of the dynamic axes.

    ``run(path, feed)`` runs the file and returns its outputs by name.  Raises ``ModelError`` if the outputs
    differ by more than rounding, in names or in shapes, or the module is not the same function each time.
    """
    worst, tried = 0.0, []
    notes: dict[str, None] = {}
    own = _own_sizes(loaded)
    for sizes in _several_sizes(own):
        feed = {spec.name: _resized(loaded, index, sizes) for index, spec in enumerate(loaded.inputs)}
        expected = _expected(loaded, feed, required=sizes == own)
        if expected is None:
            continue  # a size that the module itself does not take
        worst = max(worst, _compare(loaded, path, run, feed, expected, sizes, notes))
        tried.append(sizes)
    return ExportCheck(worst, tuple(tried), tuple(notes))


def _expected(loaded: LoadedModule, feed: dict[str, torch.Tensor], *, required: bool) -> tuple[Array, ...] | None:
    try:
        results = [_call(loaded, feed) for _ in range(2 if required else 1)]
    except MpdeployError:
        raise
    except Exception as error:
        if not required:
            return None
        raise ModelError(f"the model fails on its examples: {error}", where=loaded.origin) from error
    for first, again in zip(results[0], results[-1], strict=True):
        if not np.array_equal(first, again, equal_nan=first.dtype.kind == "f"):
            raise ModelError(
                "the model gives other outputs when it is run again: it draws random numbers, or keeps a state",
                where=loaded.origin,
                remedy="save it in eval mode; make randomness an input",
            )
    return results[0]


def _call(loaded: LoadedModule, feed: dict[str, torch.Tensor]) -> tuple[Array, ...]:
    with torch.no_grad(), plain_attention():
        found = loaded.module(*(tensor.clone() for tensor in feed.values()))
    found = found if isinstance(found, (tuple, list)) else (found,)
    for name, tensor in zip(loaded.outputs, found, strict=False):
        if tensor.dtype in (torch.float16, torch.bfloat16):
            raise ModelError(
                f"the output `{name}` is {str(tensor.dtype).removeprefix('torch.')}: forward() itself computes in half",
                where=loaded.origin,
                remedy="take autocast and .half() out of forward(): the export wants FP32, and conversion decides",
            )
    return tuple(np.array(tensor.detach().cpu().numpy()) for tensor in found)


def _compare(
    loaded: LoadedModule,
    path: Path,
    run: RunOnnx,
    feed: dict[str, torch.Tensor],
    expected: tuple[Array, ...],
    sizes: dict[str, int],
    notes: dict[str, None],
) -> float:
    at = f" with {', '.join(f'{name} {size}' for name, size in sizes.items())}" if sizes else ""
    try:
        found = run(path, {name: tensor.numpy() for name, tensor in feed.items()})
    except MpdeployError as error:
        raise ModelError(
            f"the exported model fails where torch's does not{at}: {error.what}",
            where=str(path),
            remedy="the model's code may decide by a size; write it without, or fix that axis with --input NAME:SHAPE",
        ) from error
    if set(found) != set(loaded.outputs) or len(expected) != len(loaded.outputs):
        raise ModelError(
            f"the model returns {len(expected)} outputs, the ONNX file {sorted(found)}, the recipe names "
            f"{list(loaded.outputs)}",
            where=str(path),
        )
    worst, unsettled = 0.0, list[str]()
    for place, (name, array) in enumerate(zip(loaded.outputs, expected, strict=True)):
        ours, theirs = array, found[name]
        difference = _relative(ours, theirs)
        if math.isnan(difference) and (hidden := _hidden_rows(feed, ours, theirs)).any():
            difference = _relative(ours[~hidden], theirs[~hidden])
            notes[f"`{name}` is NaN for samples whose mask hides every position, where torch gives numbers"] = None
        if not difference <= TOLERANCE:
            own = _sensitivity(loaded, feed, place)
            if not difference <= _ALIKE * own:
                raise ModelError(
                    f"the exported output `{name}` differs from torch by {difference:.3g} (norm-relative){at}",
                    where=str(path),
                    remedy="the model may decide by a size or a value in Python; write it with tensors",
                )
            unsettled.append(name)
            continue
        worst = max(worst, difference)
    if unsettled:
        names = ", ".join(f"`{name}`" for name in unsettled)
        notes[f"not held against torch: {names}; the order of nearly equal values decides there, in torch, too"] = None
    return worst


def _hidden_rows(feed: dict[str, torch.Tensor], ours: Array, theirs: Array) -> Array:
    """Which samples one of both answers with NaN; none unless each of them has a mask that is the same everywhere."""
    masks = [t.flatten(1) for t in feed.values() if t.dtype == torch.bool and t.ndim > 1]
    none: Array = np.zeros(0, np.bool_)
    if not masks or ours.shape != theirs.shape or {len(mask) for mask in masks} != {len(ours)}:
        return none
    broken = np.isnan(ours.reshape(len(ours), -1)).any(1) | np.isnan(theirs.reshape(len(theirs), -1)).any(1)
    constant = np.logical_or.reduce([(mask == mask[:, :1]).all(1).numpy() for mask in masks])
    return none if (broken & ~constant).any() else np.asarray(broken)


class _NudgedOrder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class is not typed
    """While active, what is sorted or ranked differs by a few roundings, so that nearly equal values change places."""

    def __init__(self, random: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._random = random

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run one operator, on nudged values if it is one that orders them."""
        if func.overloadpacket in _ORDERING and args and args[0].is_floating_point():
            args = (_nudged(args[0], self._random), *args[1:])
        return func(*args, **(kwargs or {}))


def _nudged(tensor: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    noise = torch.randn(tensor.shape, generator=random).to(tensor.dtype)
    finite = tensor[tensor.isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    return tensor + _NUDGE * noise * tensor.abs().clamp_min(_NUDGE * (largest or 1.0)).nan_to_num(0.0, 0.0)


def _sensitivity(loaded: LoadedModule, feed: dict[str, torch.Tensor], place: int) -> float:
    """How far torch's own output moves, at most, when inputs and what is ranked inside move by a few roundings."""
    original = _call(loaded, feed)[place]
    worst = 0.0
    for seed in range(_NUDGES):
        random = torch.Generator().manual_seed(seed)
        moved_feed = {name: _nudged(t, random) if t.is_floating_point() else t for name, t in feed.items()}
        with _NudgedOrder(random):
            moved = _relative(original, _call(loaded, moved_feed)[place])
        worst = max(worst, moved if math.isfinite(moved) else 0.0)
    return worst


def _own_sizes(loaded: LoadedModule) -> dict[str, int]:
    own: dict[str, int] = {}
    for spec, example in zip(loaded.inputs, loaded.arguments, strict=True):
        own |= {size: length for size, length in zip(spec.shape, example.shape, strict=True) if isinstance(size, str)}
    return own


def _several_sizes(own: dict[str, int]) -> Iterator[dict[str, int]]:
    """The examples' own sizes, then each dynamic axis at one, at one less, and doubled."""
    yield own
    for name, length in own.items():
        for size in sorted({1, length - 1, 2 * length} - {0, length}):
            yield own | {name: size}


def _resized(loaded: LoadedModule, index: int, sizes: Mapping[str, int]) -> torch.Tensor:
    tensor = loaded.arguments[index]
    for axis, size in enumerate(loaded.inputs[index].shape):
        if isinstance(size, str):
            if sizes[size] > tensor.shape[axis]:
                tensor = torch.cat([tensor, tensor.flip(axis)], axis)
            tensor = tensor.narrow(axis, 0, sizes[size])
    return tensor.contiguous()


def _relative(expected: Array, found: Array) -> float:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    ours, theirs = expected.astype(np.float64).ravel(), found.astype(np.float64).ravel()
    # Masks of infinities are numbers like others; where both have the same one, nothing differs.
    apart = (ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs))
    if not apart.any():
        return 0.0
    norm = np.linalg.norm(ours[np.isfinite(ours)])
    difference = np.linalg.norm(theirs[apart] - ours[apart])
    return float(difference / norm) if norm else float(difference)
