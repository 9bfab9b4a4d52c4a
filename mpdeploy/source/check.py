"""Does the ONNX file compute what the torch module computes?"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpdeploy.errors import ModelError, MpdeployError
from mpdeploy.source.loaded import LoadedModule

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]
RunOnnx = Callable[[Path, Arrays], Arrays]

# FP32 kernels differ in the order of their sums; over some hundred layers that stays far below this.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class ExportCheck:
    """How well the ONNX model agrees with the torch module.

    ``worst`` is the largest norm-relative difference ‖onnx − torch‖ / ‖torch‖ over all outputs and feeds;
    ``sizes`` tells for each feed the size of every dynamic axis.
    """

    worst: float
    sizes: tuple[dict[str, int], ...]


def check_export(loaded: LoadedModule, path: Path, run: RunOnnx) -> ExportCheck:
    """Compare the ONNX file with the torch module on its examples, at several sizes of the dynamic axes.

    ``run(path, feed)`` runs the file and returns its outputs by name.  Raises ``ModelError`` if the outputs
    differ by more than rounding, in names or in shapes, or the module is not the same function each time.
    """
    worst, tried = 0.0, []
    own = _own_sizes(loaded)
    for sizes in _several_sizes(own):
        feed = {spec.name: _resized(loaded, index, sizes) for index, spec in enumerate(loaded.inputs)}
        expected = _expected(loaded, feed, required=sizes == own)
        if expected is None:
            continue  # a size that the module itself does not take
        worst = max(worst, _compare(loaded, path, run, feed, expected, sizes))
        tried.append(sizes)
    return ExportCheck(worst, tuple(tried))


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
    with torch.no_grad():
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
) -> float:
    try:
        found = run(path, {name: tensor.numpy() for name, tensor in feed.items()})
    except MpdeployError as error:
        raise ModelError(
            f"the exported model fails where torch's does not, with {sizes}: {error.what}",
            where=str(path),
            remedy="the model's code may decide by a size; write it without, or fix that axis with --input NAME:SHAPE",
        ) from error
    if set(found) != set(loaded.outputs) or len(expected) != len(loaded.outputs):
        raise ModelError(
            f"the model returns {len(expected)} outputs, the ONNX file {sorted(found)}, the recipe names "
            f"{list(loaded.outputs)}",
            where=str(path),
        )
    worst = 0.0
    for name, array in zip(loaded.outputs, expected, strict=True):
        difference = _relative(array, found[name])
        if not difference <= TOLERANCE:
            raise ModelError(
                f"the exported output `{name}` differs from torch by {difference:.3g} (norm-relative) with {sizes}",
                where=str(path),
                remedy="the model may decide by a size or a value in Python; write it with tensors",
            )
        worst = max(worst, difference)
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
