"""From a torch module to FP32 ONNX, by torch's own exporter."""

import contextlib
import gc
import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from mpdeploy.errors import ModelError
from mpdeploy.files import atomic_path, publish, scratch_path
from mpdeploy.graph import io
from mpdeploy.runtime.attention import plain_attention
from mpdeploy.source.adapter import Adapted
from mpdeploy.source.check import ExportCheck as ExportCheck
from mpdeploy.source.check import check_export as check_export
from mpdeploy.source.faults import explained
from mpdeploy.source.loaded import LoadedModule
from mpdeploy.source.silence import silence

# The first opset in which convolution, pooling and recurrence take BF16, so that conversion need not raise it.
DEFAULT_OPSET = 22
SCRIPT_OPSET = 20  # the last that torch's exporter for TorchScript knows


def export_fp32_onnx(loaded: LoadedModule, path: Path, opset: int | None = None) -> Path:
    """Write the module to ``path`` as FP32 ONNX with its own names of inputs, outputs and dynamic axes.

    Exported outside autocast; ``opset`` is 22 by default, 20 for TorchScript.  The file appears whole or not at
    all; beyond protobuf's 2 GiB its weights go into a data file beside it, tensor by tensor.  Raises ``ModelError``
    if torch cannot export the module, or fixes a size that is to be dynamic.
    """
    if isinstance(loaded.module, torch.jit.ScriptModule):
        _export_script(loaded, path, opset or SCRIPT_OPSET)
        return path
    program = _export(loaded, opset or DEFAULT_OPSET)
    for node in program.model.graph.all_nodes():
        # Paths of the machine that exported; without them equal models make equal files.
        node.metadata_props.pop("pkg.torch.onnx.stack_trace", None)
    _name(program.model, [spec.name for spec in loaded.inputs], loaded.outputs)
    _refuse_fixed(loaded, program.model)
    if sum(v.const_value.nbytes for v in program.model.graph.initializers.values()) < io.SINGLE_FILE_BYTES:
        with atomic_path(path) as scratch, silence():
            program.save(str(scratch), external_data=False)
        return path
    with _folder_for(path) as scratch, silence():
        program.save(str(scratch), external_data=True)
    return path


@contextlib.contextmanager
def _folder_for(path: Path) -> Iterator[Path]:
    """Yield where torch may write a model and files beside it; then put both in the place of ``path``.

    What torch writes beside its model has a name of its own; ours is tied to the content and written whole.
    """
    with scratch_path(path) as scratch:
        folder = scratch.with_suffix(".torch")
        folder.mkdir()
        try:
            yield folder / "model.onnx"
            if len(list(folder.iterdir())) > 1:
                io.save(io.load(folder / "model.onnx"), path)
            else:
                publish(folder / "model.onnx", path)
        finally:
            shutil.rmtree(folder)


def _export(loaded: LoadedModule, opset: int) -> Any:
    try:
        with silence(), torch.no_grad(), _outside_autocast(), _no_collection(), plain_attention():
            program = torch.onnx.export(
                loaded.module if loaded.program is None else loaded.program,
                loaded.arguments if loaded.program is None else (),
                dynamo=True,
                dynamic_shapes=_dynamic_shapes(loaded),
                opset_version=opset,
                verbose=False,
            )
    except Exception as error:
        raise explained(error, loaded) from error
    if program is None:
        raise ModelError("torch exported nothing", where=loaded.origin)
    return program


def _name(model: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Give inputs and outputs their names.

    The exporter names inner values after their operators; one that has the name of an input or output gets another.
    """
    ports = [*zip(model.graph.inputs, inputs, strict=True), *zip(model.graph.outputs, outputs, strict=True)]
    own = {id(value) for value, _ in ports}
    wanted = {*inputs, *outputs}
    taken = wanted | {value.name for value in _values(model.graph)}
    for value in _values(model.graph):
        if id(value) not in own and value.name in wanted:
            value.name = next(name for i in itertools.count(1) if (name := f"{value.name}_{i}") not in taken)
            taken.add(value.name)
    for value, name in ports:
        value.name = name


def _values(graph: Any) -> Iterator[Any]:
    yield from list(graph.initializers.values())
    for node in graph.all_nodes():
        yield from node.outputs


def _dynamic_shapes(loaded: LoadedModule) -> Any:
    axes: dict[str, Any] = {}
    for spec in loaded.inputs:
        for size in spec.shape:
            if isinstance(size, str) and size not in axes:
                axes[size] = torch.export.Dim(size)
    shapes = tuple(
        {axis: axes[size] for axis, size in enumerate(spec.shape) if isinstance(size, str)} for spec in loaded.inputs
    )
    # A module of ours takes its arguments as one parameter, `*tensors`.
    return (shapes,) if isinstance(loaded.module, Adapted) and loaded.program is None else shapes


def _export_script(loaded: LoadedModule, path: Path, opset: int) -> None:
    """TorchScript is no Python, which the newer exporter reads: only the older one takes it."""
    axes = {
        spec.name: {axis: size for axis, size in enumerate(spec.shape) if isinstance(size, str)}
        for spec in loaded.inputs
    }
    with _folder_for(path) as scratch:
        try:
            with silence(), torch.no_grad(), _outside_autocast(), plain_attention():
                torch.onnx.export(
                    loaded.module,
                    loaded.arguments,
                    str(scratch),
                    dynamo=False,
                    input_names=[spec.name for spec in loaded.inputs],
                    output_names=list(loaded.outputs),
                    dynamic_axes={name: found for name, found in axes.items() if found},
                    opset_version=opset,
                    verbose=False,
                )
        except Exception as error:
            raise explained(error, loaded) from error


def _refuse_fixed(loaded: LoadedModule, model: Any) -> None:
    exported = {value.name: value.shape for value in model.graph.inputs}
    for spec in loaded.inputs:
        for axis, size in enumerate(spec.shape):
            shape = exported.get(spec.name)
            if isinstance(size, str) and shape is not None and isinstance(shape[axis], int):
                raise ModelError(
                    f"the model fixes the axis `{size}` of `{spec.name}` at {shape[axis]}: its code decides by it",
                    where=loaded.origin,
                    remedy=f"write forward() without the number (x.view(x.shape[0], …)), or fix the axis with --input "
                    f"{spec.name}:{','.join(str(shape[i]) if i == axis else str(a) for i, a in enumerate(spec.shape))}",
                )


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from collecting cycles: an object's last act may be one with tensors, and torch would trace it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _outside_autocast() -> Iterator[None]:
    with torch.autocast("cpu", enabled=False):
        yield
