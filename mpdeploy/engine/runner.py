"""An engine as a runner, on the GPU it was built for."""

import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from mpdeploy.engine.binding import check_types, spec_of
from mpdeploy.engine.execution import Execution as Launcher
from mpdeploy.engine.gpu import find_gpus
from mpdeploy.engine.loaded import LoadedEngine, load_engine
from mpdeploy.engine.loading import check_fit, read_engine, toolkit_of
from mpdeploy.engine.record import EngineRecord
from mpdeploy.errors import DependencyError, ModelError, UsageError
from mpdeploy.runtime.arrays import in_order
from mpdeploy.runtime.runner import Array, Execution, Feed, TensorSpec

if TYPE_CHECKING:
    import torch

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class EngineRunner:
    """The engine in ``path``, loaded after its sidecar was checked; it runs on torch's current GPU.

    ``run`` takes and returns numpy arrays, ``run_tensors`` CUDA tensors without a copy.  Raises ``UsageError``
    for a changed file, ``DependencyError`` for another version, another GPU or none (see ``mpdeploy.engine.loading``).
    """

    def __init__(self, path: Path) -> None:
        self._where = str(path)
        self._record = read_engine(path)
        toolkit = toolkit_of(self._record)
        gpus = find_gpus()
        here = _current_gpu() if gpus else 0
        self._gpu = check_fit(self._record, toolkit, gpus[here:], self._where)
        self._torch = _cuda_torch()
        self._device = self._torch.device("cuda", here)
        # The engine needs the runtime as long as it lives.
        self._loaded = load_engine(toolkit, self._record, path, self._gpu)
        self._launcher = Launcher(
            toolkit.module, self._loaded.engine, self._loaded.context, self._record, self._device, self._where
        )
        self._lock = threading.Lock()
        self._done = self._torch.cuda.Event()
        self._compiled_for: set[tuple[tuple[int, ...], ...]] = set()
        # TensorRT waits for more than it must on the default stream.
        self._stream = self._torch.cuda.Stream(self._device)
        weakref.finalize(self, _close, self._launcher, self._loaded, self._done)

    @property
    def record(self) -> EngineRecord:
        """What the sidecar says of the engine."""
        return self._record

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that a feed must hold."""
        return tuple(map(spec_of, self._record.inputs))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs, in the model's order."""
        return tuple(map(spec_of, self._record.outputs))

    def run(self, feed: Feed) -> dict[str, Array]:
        """Return the outputs by name as arrays; copies inputs to the GPU and outputs back.

        Raises ``UsageError`` for an input of another type or shape than the engine reads.
        """
        check_types({name: (a.dtype.name, a.shape) for name, a in feed.items()}, self._record.inputs, self._where)
        return {name: to_array(tensor) for name, tensor in self._run(tensors_of(feed)).items()}

    def run_tensors(self, feed: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        """Return the outputs by name as CUDA tensors; the inputs are CUDA tensors, too, and are read in place.

        Works on torch's current stream and does not wait for it.  Inputs whose values decide shapes may lie on the CPU,
        where TensorRT reads them.  Raises ``UsageError`` for a tensor on another device, of another type or shape.
        """
        for name, tensor in feed.items():
            if tensor.device != self._device and not (name in self._launcher.on_host and tensor.device.type == "cpu"):
                raise UsageError(
                    f"input '{name}' is on {tensor.device}, the engine reads the memory of {self._device}",
                    where=self._where,
                    remedy=f"move it with .to('{self._device}')",
                )
        given = {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in feed.items()}
        check_types(given, self._record.inputs, self._where)
        return self._run(feed)

    def describe(self) -> Execution:
        """Return exactly what runs."""
        kinds = self._record.census.compute or self._record.census.outputs
        return Execution(
            runtime=self._record.backend,
            version=self._record.backend_version,
            provider=self._gpu.name,
            precision=" and ".join(kinds) + (", TF32 allowed" if self._record.options.tf32 else ""),
            evidence=True,
        )

    def _run(self, feed: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        with self._lock, self._torch.cuda.device(self._device):
            current = self._torch.cuda.current_stream()
            stream = current if current != self._torch.cuda.default_stream() else self._stream
            stream.wait_stream(current)  # for what made the inputs
            stream.wait_event(self._done)  # the run before may be on another stream, and holds the scratch memory
            with self._torch.cuda.stream(stream):
                try:
                    results = self._launcher.run(feed, stream.cuda_stream)
                except self._torch.OutOfMemoryError as error:
                    raise ModelError(
                        f"the GPU has no memory for a run of this size: {' '.join(str(error).split())[:200]}",
                        where=self._where,
                        remedy="give fewer samples at once, or free the GPU's memory",
                    ) from error
            self._done.record(stream)
            current.wait_stream(stream)
            _share(feed, stream)
            _share(results, current)
        shapes = tuple(tuple(feed[port.name].shape) for port in self._record.inputs)
        if shapes not in self._compiled_for:
            self._compiled_for.add(shapes)
            _keep_kernels(self._loaded)
        return results


def _share(tensors: "Mapping[str, torch.Tensor]", stream: Any) -> None:
    """Keep torch from giving a tensor's memory away before a stream that it was not made on has done with it."""
    for tensor in tensors.values():
        if tensor.is_cuda:
            tensor.record_stream(stream)


def _close(launcher: Launcher, loaded: LoadedEngine, done: Any) -> None:
    done.synchronize()
    launcher.release()
    loaded.close()


def _keep_kernels(loaded: LoadedEngine) -> None:
    if loaded.kernels is not None:
        loaded.kernels.save()


def tensors_of(feed: Feed) -> "dict[str, torch.Tensor]":
    """Return arrays as CPU tensors that share their memory where torch can."""
    return {name: _to_tensor(array) for name, array in feed.items()}


def to_array(tensor: "torch.Tensor") -> Array:
    """Return a tensor's values as an array, BF16 included."""
    import torch

    tensor = tensor.cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(_BFLOAT16)
    return tensor.numpy()


def _to_tensor(array: Array) -> "torch.Tensor":
    import torch

    array = in_order(array)
    if not array.flags.writeable:
        array = array.copy()  # torch would warn of what nobody does
    if array.dtype == _BFLOAT16:  # torch takes no foreign types from numpy
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _current_gpu() -> int:
    torch = _cuda_torch()
    return int(torch.cuda.current_device())


def _cuda_torch() -> Any:
    import torch

    if not torch.cuda.is_available():
        raise DependencyError(
            "running an engine needs torch with CUDA", remedy="install a CUDA build of torch, see pytorch.org"
        )
    return torch
