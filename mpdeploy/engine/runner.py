"""An engine as a runner, on the GPU it was built for."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from mpdeploy.engine.binding import check_types, choose_profile, spec_of
from mpdeploy.engine.gpu import find_gpus
from mpdeploy.engine.loading import check_fit, read_engine, toolkit_of
from mpdeploy.engine.messages import capture, logger_for
from mpdeploy.engine.record import EngineRecord
from mpdeploy.errors import DependencyError, ModelError, UsageError
from mpdeploy.runtime.runner import Array, Execution, Feed, TensorSpec

if TYPE_CHECKING:
    import torch

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class EngineRunner:
    """The engine in ``path``, loaded after its sidecar was checked.

    ``run`` takes and returns numpy arrays, ``run_tensors`` CUDA tensors without a copy.  Raises ``UsageError``
    for a changed file, ``DependencyError`` for another version, another GPU or none (see ``mpdeploy.engine.loading``).
    """

    def __init__(self, path: Path) -> None:
        self._where = str(path)
        self._record = read_engine(path)
        self._toolkit = toolkit_of(self._record)
        self._gpu = check_fit(self._record, self._toolkit, find_gpus(), self._where)
        self._torch = _cuda_torch()
        trt = self._toolkit.module
        with capture() as inbox:
            # The engine needs the runtime as long as it lives.
            self._runtime = trt.Runtime(logger_for(trt))
            self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
            self._context: Any = self._engine.create_execution_context() if self._engine else None
        if self._context is None:
            reason = (*inbox.errors(), "no reason given")[0]
            raise DependencyError(f"{self._toolkit.title} cannot load the engine: {reason}", where=self._where)
        self._profile = 0

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
        self._check({name: (array.dtype.name, array.shape) for name, array in feed.items()})
        tensors = {name: self._to_gpu(array) for name, array in feed.items()}
        return {name: _to_array(tensor) for name, tensor in self.run_tensors(tensors).items()}

    def run_tensors(self, feed: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
        """Return the outputs by name as CUDA tensors; the inputs are CUDA tensors, too, and are read in place.

        Works on torch's current stream and does not wait for it.  Raises ``UsageError`` for a tensor on another
        device, of another type or shape.
        """
        for name, tensor in feed.items():
            if not tensor.is_cuda:
                raise UsageError(
                    f"input '{name}' is on {tensor.device}, the engine reads GPU memory",
                    where=self._where,
                    remedy="move it with .cuda()",
                )
        shapes = {name: tuple(tensor.shape) for name, tensor in feed.items()}
        types = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in feed.items()}
        self._check({name: (types[name], shapes[name]) for name in feed})
        return self._execute({name: tensor.contiguous() for name, tensor in feed.items()}, shapes)

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

    def _check(self, given: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        check_types(given, self._record.inputs, self._where)
        shapes = {port.name: given[port.name][1] for port in self._record.inputs if not port.holds_shape}
        choose_profile(shapes, self._record.options.profiles, self._where)

    def _execute(
        self, feed: "dict[str, torch.Tensor]", shapes: dict[str, tuple[int, ...]]
    ) -> "dict[str, torch.Tensor]":
        stream = self._torch.cuda.current_stream().cuda_stream
        holders = {port.name for port in self._record.inputs if port.holds_shape}
        plain = {name: shape for name, shape in shapes.items() if name not in holders}
        profile = choose_profile(plain, self._record.options.profiles, self._where)
        if profile != self._profile:
            self._context.set_optimization_profile_async(profile, stream)
            self._profile = profile
        # TensorRT reads the values of shape inputs on the host.
        bound = {name: tensor.cpu() if name in holders else tensor for name, tensor in feed.items()}
        for name, tensor in bound.items():
            self._context.set_input_shape(name, tuple(tensor.shape))
            self._context.set_tensor_address(name, tensor.data_ptr())
        lacking = self._context.infer_shapes()
        if lacking:
            raise ModelError(f"TensorRT cannot infer shapes from {', '.join(lacking)}", where=self._where)
        outputs = {spec.name: self._output(spec) for spec in self.outputs}
        for name, tensor in outputs.items():
            self._context.set_tensor_address(name, tensor.data_ptr())
        if not self._context.execute_async_v3(stream):
            raise ModelError("TensorRT failed to run the engine", where=self._where)
        return outputs

    def _output(self, spec: TensorSpec) -> "torch.Tensor":
        shape = tuple(self._context.get_tensor_shape(spec.name))
        if any(size < 0 for size in shape):
            raise ModelError(
                f"the size of output '{spec.name}' depends on the data",
                where=self._where,
                remedy="run its ONNX model instead",
            )
        empty: torch.Tensor = self._torch.empty(shape, dtype=getattr(self._torch, spec.dtype), device="cuda")
        return empty

    def _to_gpu(self, array: Array) -> "torch.Tensor":
        torch = self._torch
        array = np.ascontiguousarray(array)
        if array.dtype == _BFLOAT16:  # torch takes no foreign types from numpy
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).cuda()  # type: ignore[no-any-return]
        return torch.from_numpy(array).cuda()  # type: ignore[no-any-return]


def _to_array(tensor: "torch.Tensor") -> Array:
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).cpu().numpy().view(_BFLOAT16)
    return tensor.cpu().numpy()


def _cuda_torch() -> Any:
    import torch

    if not torch.cuda.is_available():
        raise DependencyError(
            "running an engine needs torch with CUDA", remedy="install a CUDA build of torch, see pytorch.org"
        )
    return torch
