"""From a torch module to FP32 ONNX, and the check that both compute the same."""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpdeploy.errors import ModelError
from mpdeploy.files import atomic_path
from mpdeploy.source.loading import LoadedModule

Arrays = Mapping[str, np.ndarray[Any, Any]]
RunOnnx = Callable[[Path, Arrays], Arrays]

# The first opset in which convolution, pooling and recurrence take BF16, so that conversion need not raise it.
DEFAULT_OPSET = 22
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


def export_fp32_onnx(loaded: LoadedModule, path: Path, opset: int | None = None) -> Path:
    """Write the module to ``path`` as FP32 ONNX with its own names of inputs, outputs and dynamic axes.

    Exported outside autocast; ``opset`` is 22 by default.  The file appears whole or not at all.  Raises
    ``ModelError`` if torch cannot export the module.
    """
    axes: dict[str, Any] = {}
    for spec in loaded.inputs:
        for size in spec.shape:
            if isinstance(size, str) and size not in axes:
                axes[size] = torch.export.Dim(size)
    shapes = tuple(
        {axis: axes[size] for axis, size in enumerate(spec.shape) if isinstance(size, str)} for spec in loaded.inputs
    )
    try:
        with _silence(), torch.no_grad():
            program = torch.onnx.export(
                loaded.module,
                loaded.arguments,
                dynamo=True,
                input_names=[spec.name for spec in loaded.inputs],
                output_names=list(loaded.outputs),
                dynamic_shapes=shapes,
                opset_version=opset or DEFAULT_OPSET,
                verbose=False,
            )
    except Exception as error:
        raise ModelError(
            f"torch cannot export the model: {_first_cause(error)}",
            where=loaded.record.recipe.file,
            remedy="avoid Python branches on tensor values in forward(); fix axes whose size the model decides",
        ) from error
    if program is None:
        raise ModelError("torch exported nothing", where=loaded.record.recipe.file)
    for node in program.model.graph.all_nodes():
        # Paths of the machine that exported; without them equal models make equal files.
        node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)
    with atomic_path(path) as scratch, _silence():
        program.save(str(scratch), external_data=False)
    return path


def check_export(loaded: LoadedModule, path: Path, run: RunOnnx) -> ExportCheck:
    """Compare the ONNX file with the torch module on real examples, at several sizes of the dynamic axes.

    ``run(path, feed)`` runs the file and returns its outputs by name.  Raises ``ModelError`` if the outputs
    differ by more than rounding, in names or in shapes.
    """
    worst, tried = 0.0, []
    for sizes in _several_sizes(loaded):
        feed = {spec.name: _resized(loaded, index, sizes) for index, spec in enumerate(loaded.inputs)}
        with torch.no_grad():
            expected = loaded.module(*feed.values())
        expected = expected if isinstance(expected, tuple) else (expected,)
        found = run(path, {name: tensor.numpy() for name, tensor in feed.items()})
        if set(found) != set(loaded.outputs) or len(expected) != len(loaded.outputs):
            raise ModelError(
                f"the model returns {len(expected)} outputs, the ONNX file {sorted(found)}, the recipe names "
                f"{list(loaded.outputs)}",
                where=str(path),
            )
        for name, tensor in zip(loaded.outputs, expected, strict=True):
            difference = _relative(tensor.numpy(), found[name])
            if not difference <= TOLERANCE:
                raise ModelError(
                    f"the exported output `{name}` differs from torch by {difference:.3g} (norm-relative) with {sizes}",
                    where=str(path),
                    remedy="the model may decide by a size or a value in Python; write it with tensors",
                )
            worst = max(worst, difference)
        tried.append(sizes)
    return ExportCheck(worst, tuple(tried))


def _several_sizes(loaded: LoadedModule) -> Iterator[dict[str, int]]:
    """The examples' own sizes, then each dynamic axis at one and at one less, never more than there is."""
    own: dict[str, int] = {}
    for spec, example in zip(loaded.inputs, loaded.arguments, strict=True):
        own |= {size: length for size, length in zip(spec.shape, example.shape, strict=True) if isinstance(size, str)}
    yield own
    for name, length in own.items():
        for size in sorted({1, length - 1} - {0, length}):
            yield own | {name: size}


def _resized(loaded: LoadedModule, index: int, sizes: Mapping[str, int]) -> torch.Tensor:
    tensor = loaded.arguments[index]
    for axis, size in enumerate(loaded.inputs[index].shape):
        if isinstance(size, str):
            tensor = tensor.narrow(axis, 0, sizes[size])
    return tensor.contiguous()


def _relative(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return float("inf")
    difference = np.linalg.norm((found.astype(np.float64) - expected).ravel())
    norm = np.linalg.norm(expected.astype(np.float64).ravel())
    return float(difference / norm) if norm else float(difference)


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keep the exporter's prints, warnings and log lines from the user's terminal."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
