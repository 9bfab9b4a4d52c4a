"""From a file to a runner: what the file is, which runtimes take it, which one is meant."""

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from mpdeploy.bundle.check import is_bundle
from mpdeploy.engine.record import ENGINE_SUFFIXES, sidecar_of
from mpdeploy.errors import UsageError
from mpdeploy.files import readable_file
from mpdeploy.graph.patience import limited, require_seconds
from mpdeploy.runtime.runner import Runner
from mpdeploy.source import kinds

if TYPE_CHECKING:
    from mpdeploy.runtime.feeds import Feeds
    from mpdeploy.source.given import Given

_MOST_THREADS = 1024  # far above any machine's cores; beyond it runtimes spend minutes on starting threads


class Kind(Enum):
    """What a file is."""

    ONNX = "an ONNX model"
    ENGINE = "an engine"
    TORCH = "a torch model"


class Runtime(Enum):
    """What runs a model, by the name that ``--runtime`` takes.

    ``AUTO`` is the one whose numbers are those of the file's own formats on this machine: the emulator for an
    ONNX model with FP16 or BF16 tensors, ONNX Runtime for any other, TensorRT for an engine, torch for all else
    that `mpdeploy export` takes.
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
    Kind.TORCH: (Runtime.TORCH,),
}


def kind_of(path: Path) -> Kind:
    """Return what the file or folder is, by what it holds or the sidecar beside it.

    Raises ``UsageError`` if it cannot be read or can be no model; of a bundle it names the models.
    """
    if path.is_dir() and is_bundle(path):
        inside = sorted(file for home in ("models", "engines") for file in (path / home).glob("*.*"))
        known = ", ".join(str(file) for file in inside if file.suffix in (".onnx", *ENGINE_SUFFIXES))
        raise UsageError(
            "a bundle is not a model", where=str(path), remedy=f"name a file in it: {known or 'it has none'}"
        )
    if not path.is_dir() and (path.suffix in ENGINE_SUFFIXES or sidecar_of(path).is_file()):
        readable_file(path, "model")
        return Kind.ENGINE
    return Kind.ONNX if kinds.kind_of(path) is kinds.Kind.ONNX else Kind.TORCH


def open_runner(
    path: Path,
    runtime: Runtime = Runtime.AUTO,
    *,
    threads: int = 0,
    given: "Given | None" = None,
    data: "Feeds | None" = None,
    timeout: float | None = None,
) -> Runner:
    """Return a runner for an ONNX model, an engine with its sidecar, or a torch model in any form.

    ``threads`` 0 means one per core, and torch's own setting for torch.  ``given`` says of a torch model what its
    file does not, ``data`` what its inputs are where neither does.  One run may take ``timeout`` seconds,
    unless it is an engine's.  Raises ``UsageError`` for a file that is none of
    these, a runtime that does not take it or an impossible number of threads, ``ModelError`` if the runtime refuses
    it or it would run code, ``DependencyError`` if the runtime or its hardware is missing.
    """
    require_seconds(timeout)
    if not 0 <= threads <= _MOST_THREADS:
        raise UsageError(
            f"no runtime works in {threads} threads", where="--threads", remedy="leave it out for one per core"
        )
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
    if kind is Kind.TORCH:
        return _open_torch(path, given, data, timeout)
    return _open_onnx(path, runtime, threads, timeout)


def _open_torch(path: Path, given: "Given | None", data: "Feeds | None", timeout: float | None) -> Runner:
    from mpdeploy.source.given import NOTHING
    from mpdeploy.source.missing import require_complete

    require_complete(path, given or NOTHING, with_data=data is not None)  # before torch is imported

    from mpdeploy.runtime.runner import TensorSpec
    from mpdeploy.runtime.torch_module import TorchModuleRunner
    from mpdeploy.source.opening import open_source

    loaded = open_source(path, given or NOTHING, data, timeout=timeout)
    inputs = [TensorSpec(spec.name, spec.dtype, spec.shape) for spec in loaded.inputs]
    return TorchModuleRunner(loaded.module, inputs, loaded.outputs, str(path), timeout=timeout)


def _open_onnx(path: Path, runtime: Runtime, threads: int, timeout: float | None) -> Runner:
    from mpdeploy.graph import io
    from mpdeploy.runtime.choose import truthful_runner
    from mpdeploy.runtime.emulator import EmulatorRunner
    from mpdeploy.runtime.openvino import OpenVinoRunner
    from mpdeploy.runtime.ort import OrtRunner

    if runtime is Runtime.OPENVINO:
        return OpenVinoRunner(path, threads, timeout)
    model, where = limited(io.load(path), timeout), str(path)
    if runtime is Runtime.EMULATOR:
        return EmulatorRunner(model, where, threads)
    if runtime is Runtime.ONNXRUNTIME:
        return OrtRunner(model, where, threads=threads, as_written=False)
    return truthful_runner(model, where, threads)
