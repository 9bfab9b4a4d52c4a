"""Memory as TensorRT wants it: aligned, never at address zero, and made on demand where a size depends on the data."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ALIGNMENT = 256  # bytes; TensorRT asks it of every address


def buffer(size: int, device: "torch.device", alignment: int = ALIGNMENT) -> "torch.Tensor":
    """Return ``size`` bytes on ``device`` at an aligned address; one more where ``size`` is 0, so that it has one."""
    import torch

    spare = torch.empty(max(size, 1) + alignment - 1, dtype=torch.uint8, device=device)
    start = -spare.data_ptr() % alignment
    return spare[start : start + max(size, 1)]


def shaped(memory: "torch.Tensor", dtype: "torch.dtype", shape: tuple[int, ...]) -> "torch.Tensor":
    """Return the tensor that lies at the start of ``memory``, without a copy."""
    import math

    return memory[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def aligned(tensor: "torch.Tensor") -> "torch.Tensor":
    """Return the tensor itself if TensorRT can read it where it lies, else a contiguous copy at a good address."""
    tensor = tensor.detach().contiguous()
    if tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    copy = shaped(buffer(tensor.nbytes, tensor.device), tensor.dtype, tuple(tensor.shape))
    return copy.copy_(tensor)


def output_allocator(module: Any, device: "torch.device") -> Any:
    """Return an ``IOutputAllocator`` of the given TensorRT module for one output of one run.

    After the run ``memory`` holds the bytes and ``shape`` says how to read them; ``failure`` is an exception that the
    allocation met, which must not pass through TensorRT.
    """

    class Allocator(module.IOutputAllocator):  # type: ignore[misc]  # a class of whichever TensorRT is installed
        def __init__(self) -> None:
            module.IOutputAllocator.__init__(self)
            self.memory: torch.Tensor | None = None
            self.shape: tuple[int, ...] | None = None
            self.failure: Exception | None = None

        def reallocate_output(self, name: str, memory: int | None, size: int, alignment: int) -> int | None:
            try:
                if self.memory is None or self.memory.nbytes < size or self.memory.data_ptr() % max(alignment, 1):
                    self.memory = buffer(size, device, max(alignment, ALIGNMENT))
            except Exception as error:  # noqa: BLE001 - raised again after the run
                self.failure = error
                return None
            return self.memory.data_ptr()

        def reallocate_output_async(
            self, name: str, memory: int | None, size: int, alignment: int, stream: int
        ) -> int | None:
            # On torch's current stream, which is the one that the engine runs on: torch frees in its order.
            return self.reallocate_output(name, memory, size, alignment)

        def notify_shape(self, name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return Allocator()
