"""From a file to a runner: what the file is, which runtimes take it, which one is meant."""

from enum import Enum
from pathlib import Path

from mpdeploy.engine.record import sidecar_of
from mpdeploy.errors import UsageError
from mpdeploy.files import readable_file
from mpdeploy.runtime.runner import Runner

_ENGINE_SUFFIXES = (".engine", ".plan", ".trt")
_CHECKPOINT_SUFFIXES = (".pt", ".pth")


class Kind(Enum):
    """What a file is."""

    ONNX = "an ONNX model"
    ENGINE = "an engine"
    CHECKPOINT = "a checkpoint"


class Runtime(Enum):
    """What runs a model, by the name that ``--runtime`` takes.

    ``AUTO`` is the one whose numbers are those of the file's own formats on this machine: the emulator for an
    ONNX model with FP16 or BF16 tensors, ONNX Runtime for any other, TensorRT for an engine, torch for a checkpoint.
    """

    AUTO = "auto"
    EMULATOR = "emulator"
    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"
    TENSORRT = "tensorrt"
    TORCH = "torch"


RUNTIMES_OF = {
    Kind.ONNX: (Runtime.EMULATOR, Runtime.ONNXRUNTIME, Runtime.OPENVINO),
    Kind.ENGINE: (Runtime.TENSORRT,),
    Kind.CHECKPOINT: (Runtime.TORCH,),
}


def kind_of(path: Path) -> Kind:
    """Return what the file is, by its name or by the sidecar beside it; ``UsageError`` if it cannot be read."""
    readable_file(path, "model")
    if path.suffix in _ENGINE_SUFFIXES or sidecar_of(path).is_file():
        return Kind.ENGINE
    return Kind.CHECKPOINT if path.suffix in _CHECKPOINT_SUFFIXES else Kind.ONNX


def open_runner(path: Path, runtime: Runtime = Runtime.AUTO, *, threads: int = 0, recipe: Path | None = None) -> Runner:
    """Return a runner for an ONNX model, an engine with its sidecar, or a checkpoint of ours.

    ``threads`` 0 means one per core; ``recipe`` is the file that defines a checkpoint's model, by default the one
    of its name in ``models/``.  Raises ``UsageError`` for a file that is none of these or a runtime that does not
    take it, ``ModelError`` if the runtime refuses it, ``DependencyError`` if the runtime or its hardware is missing.
    """
    kind = kind_of(path)
    takers = RUNTIMES_OF[kind]
    if runtime is not Runtime.AUTO and runtime not in takers:
        raise UsageError(
            f"{runtime.value} does not run {kind.value}",
            where=str(path),
            remedy=f"use --runtime {' or '.join(taker.value for taker in takers)}",
        )
    if kind is Kind.ENGINE:
        from mpdeploy.engine.runner import EngineRunner

        return EngineRunner(path)
    if kind is Kind.CHECKPOINT:
        from mpdeploy.session.checkpoint import TorchRunner

        return TorchRunner(path, recipe)
    return _open_onnx(path, runtime, threads)


def _open_onnx(path: Path, runtime: Runtime, threads: int) -> Runner:
    from mpdeploy.graph import io
    from mpdeploy.runtime.choose import truthful_runner
    from mpdeploy.runtime.emulator import EmulatorRunner
    from mpdeploy.runtime.openvino import OpenVinoRunner
    from mpdeploy.runtime.ort import OrtRunner

    if runtime is Runtime.OPENVINO:
        return OpenVinoRunner(path, threads)
    model, where = io.load(path), str(path)
    if runtime is Runtime.EMULATOR:
        return EmulatorRunner(model, where, threads)
    if runtime is Runtime.ONNXRUNTIME:
        return OrtRunner(model, where, threads=threads)
    return truthful_runner(model, where, threads)
