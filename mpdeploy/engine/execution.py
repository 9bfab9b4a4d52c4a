"""One execution context at work: profile, shapes, addresses, launch.  Every answer of TensorRT is looked at."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mpdeploy.engine.binding import choose_profile, spec_of
from mpdeploy.engine.memory import aligned, buffer, output_allocator, shaped
from mpdeploy.engine.messages import Inbox, capture
from mpdeploy.engine.network import Port
from mpdeploy.engine.record import EngineRecord
from mpdeploy.errors import ModelError

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]


class Execution:
    """A context of an engine that was loaded, with the ports of its record, on ``device``.

    Not for two threads or two streams at once: TensorRT's context holds the scratch memory of one run.
    """

    def __init__(
        self, module: Any, engine: Any, context: Any, record: EngineRecord, device: "torch.device", where: str
    ) -> None:
        self._module, self._context = module, context
        self._inputs, self._outputs = record.inputs, record.outputs
        self._profiles = record.options.profiles
        self._device, self._where = device, where
        host = module.TensorLocation.HOST
        self._on_host = {
            port.name for port in (*record.inputs, *record.outputs) if engine.get_tensor_location(port.name) == host
        }
        self._profile = 0
        self._bound: list[Any] = []  # what the context points to stays alive until the next run points elsewhere

    def run(self, feed: "Tensors", stream: int) -> "dict[str, torch.Tensor]":
        """Return the outputs on the device; the work is queued on ``stream``, a CUDA stream's handle.

        ``feed`` has the right names, types and ranks.  Raises ``UsageError`` for shapes that no profile holds,
        ``ModelError`` with TensorRT's reason if it refuses to run.
        """
        placed = {port.name: self._placed(port, feed[port.name]) for port in self._inputs}
        profile = choose_profile(self._asked(placed), self._profiles, self._where)
        with capture() as inbox:
            self._select(profile, stream, inbox)
            for name, tensor in placed.items():
                self._require(self._context.set_input_shape(name, tuple(tensor.shape)), f"the shape of '{name}'", inbox)
                self._point(name, tensor, inbox)
            self._infer(inbox)
            outputs = {port.name: self._output(port, inbox) for port in self._outputs}
            done = self._context.execute_async_v3(stream)
            self._bound = [*placed.values(), *outputs.values()]
            for name, output in outputs.items():
                if failure := getattr(output, "failure", None):
                    raise self._fault(f"no memory for output '{name}': {failure}", inbox) from failure
            self._require(done, "to run", inbox)
            return {port.name: self._result(port, outputs[port.name], inbox) for port in self._outputs}

    def release(self) -> None:
        """Let go of the context and the memory it points to; nothing runs any more."""
        self._context = None
        self._bound = []

    @property
    def on_host(self) -> frozenset[str]:
        """The inputs and outputs that TensorRT reads and writes in the CPU's memory."""
        return frozenset(self._on_host)

    def _placed(self, port: Port, tensor: "torch.Tensor") -> "torch.Tensor":
        return tensor.cpu().contiguous() if port.name in self._on_host else aligned(tensor.to(self._device))

    def _asked(self, placed: "Tensors") -> dict[str, tuple[int, ...]]:
        """What a profile must hold: the shape of each input, the values of those that hold a shape."""
        return {
            port.name: tuple(placed[port.name].flatten().tolist() if port.holds_shape else placed[port.name].shape)
            for port in self._inputs
        }

    def _select(self, profile: int, stream: int, inbox: Inbox) -> None:
        if profile == self._profile:
            return
        try:
            done = self._context.set_optimization_profile_async(profile, stream)
        except RuntimeError as error:  # the bindings raise where their documentation promises False
            raise self._fault(f"TensorRT refuses profile {profile}: {error}", inbox) from error
        self._require(done, f"profile {profile}", inbox)
        self._profile = profile

    def _point(self, name: str, tensor: "torch.Tensor", inbox: Inbox) -> None:
        # An empty tensor has no address of its own, and TensorRT wants one.
        memory = tensor if tensor.data_ptr() else buffer(0, tensor.device)
        self._bound.append(memory)
        self._require(self._context.set_tensor_address(name, memory.data_ptr()), f"the memory of '{name}'", inbox)

    def _infer(self, inbox: Inbox) -> None:
        try:
            lacking: Sequence[str] = self._context.infer_shapes()
        except RuntimeError as error:
            raise self._fault(f"TensorRT cannot infer the shapes: {error}", inbox) from error
        if lacking:
            raise ModelError(f"TensorRT cannot infer shapes from {', '.join(lacking)}", where=self._where)

    def _output(self, port: Port, inbox: Inbox) -> Any:
        """Bind an output: memory of its size, or an allocator where the size depends on the data."""
        import torch

        shape = tuple(self._context.get_tensor_shape(port.name))
        device = torch.device("cpu") if port.name in self._on_host else self._device
        if any(size < 0 for size in shape):
            allocator = output_allocator(self._module, device)
            done = self._context.set_output_allocator(port.name, allocator)
            self._require(done, f"an allocator for '{port.name}'", inbox)
            return allocator
        dtype = _dtype(port)
        memory = buffer(_bytes(shape, dtype), device)
        self._require(
            self._context.set_tensor_address(port.name, memory.data_ptr()), f"the memory of '{port.name}'", inbox
        )
        return shaped(memory, dtype, shape)

    def _result(self, port: Port, output: Any, inbox: Inbox) -> "torch.Tensor":
        import torch

        if not isinstance(output, torch.Tensor):
            if output.memory is None or output.shape is None:
                raise self._fault(f"TensorRT did not say how large output '{port.name}' is", inbox)
            self._context.set_output_allocator(port.name, None)  # the next run may know the size
            output = shaped(output.memory, _dtype(port), output.shape)
        if port.name in self._on_host and self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        on_device: torch.Tensor = output.to(self._device)
        return on_device

    def _require(self, done: bool, what: str, inbox: Inbox) -> None:
        if not done:
            raise self._fault(f"TensorRT refuses {what}", inbox)

    def _fault(self, what: str, inbox: Inbox) -> ModelError:
        reasons = inbox.errors()
        return ModelError(f"{what}: {reasons[-1]}" if reasons else what, where=self._where)


def _dtype(port: Port) -> "torch.dtype":
    import torch

    dtype: torch.dtype = getattr(torch, spec_of(port).dtype)
    return dtype


def _bytes(shape: tuple[int, ...], dtype: "torch.dtype") -> int:
    import math

    return math.prod(shape) * dtype.itemsize
