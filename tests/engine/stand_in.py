"""An engine without a GPU: as strict as TensorRT's documentation, in the CPU's memory.

What runs an engine (``mpdeploy.engine.execution`` and what it calls) is the same code on a GPU.  The stand-in holds it
to the documented contract: addresses aligned and not zero, every tensor bound, every shape set again after a change of
profile, sizes that depend on data asked of the allocator.  Names and signatures are those of the real module, which
``test_trt_api`` holds them to; enumerations and base classes are the real module's own.
"""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from mpdeploy.engine.memory import ALIGNMENT
from mpdeploy.engine.record import EngineRecord

_TYPES = {
    "fp32": ("FLOAT", np.float32),
    "fp16": ("HALF", np.float16),
    "bf16": ("BF16", ml_dtypes.bfloat16),
    "int64": ("INT64", np.int64),
    "int32": ("INT32", np.int32),
    "bool": ("BOOL", np.bool_),
}


@dataclass
class Engine:
    """An engine with the ports of ``record``; ``compute`` maps input arrays to output arrays."""

    trt: Any
    record: EngineRecord
    compute: Callable[[dict[str, Any]], dict[str, Any]]
    open_outputs: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    weight_streaming_budget_v2: int = -1

    def __post_init__(self):
        self.ports = {port.name: port for port in (*self.record.inputs, *self.record.outputs)}
        self.num_io_tensors = len(self.ports)

    def get_tensor_name(self, index):
        return list(self.ports)[index]

    def get_tensor_mode(self, name):
        is_input = self.ports[name] in self.record.inputs
        return self.trt.TensorIOMode.INPUT if is_input else self.trt.TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name):
        return getattr(self.trt.DataType, _TYPES[self.ports[name].type][0])

    def get_tensor_shape(self, name):
        return self.trt.Dims([d if isinstance(d, int) else -1 for d in self.ports[name].shape])

    def get_tensor_location(self, name):
        return self.trt.TensorLocation.HOST if name in self.host else self.trt.TensorLocation.DEVICE

    def get_weight_streaming_automatic_budget(self):
        return 12345

    def create_execution_context(self):
        return Context(self)


@dataclass
class Context:
    engine: Engine
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    allocators: dict[str, Any] = field(default_factory=dict)
    profiles: list[int] = field(default_factory=lambda: [0])
    streams: list[int] = field(default_factory=list)

    def set_optimization_profile_async(self, profile, stream):
        self.profiles.append(profile)
        self.shapes.clear()
        return 0 <= profile < max(len(self.engine.record.options.profiles), 1)

    def set_input_shape(self, name, shape):
        port = self.engine.ports[name]
        ranges = self._profile()
        found = ranges and ranges.range_of(name)
        if len(shape) != len(port.shape):
            return False
        if found and not port.holds_shape and not all(map(lambda a, b, c: a <= b <= c, found.min, shape, found.max)):
            return False
        self.shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name, memory):
        assert name in self.engine.ports
        assert name in self.engine.host or memory % ALIGNMENT == 0, f"{name} at {memory:#x} is not aligned"
        self.addresses[name] = memory
        return True

    def set_output_allocator(self, name, allocator):
        self.allocators.pop(name, None)
        if allocator is not None:
            assert isinstance(allocator, self.engine.trt.IOutputAllocator)
            self.allocators[name] = allocator
        return True

    def infer_shapes(self):
        inputs = [port.name for port in self.engine.record.inputs]
        lacking = [n for n in inputs if n not in self.shapes or (n in self.engine.host and not self.addresses.get(n))]
        if not lacking:
            self.results = self.engine.compute({name: self._read(name) for name in inputs})
        return lacking

    def get_tensor_shape(self, name):
        if name in self.engine.open_outputs:
            return self.engine.trt.Dims([-1] * self.results[name].ndim)
        return self.engine.trt.Dims(self.results[name].shape)

    def execute_async_v3(self, stream):
        self.streams.append(stream)
        for port in self.engine.record.inputs:
            assert self.addresses.get(port.name), f"{port.name} has no address"
        for port in self.engine.record.outputs:
            result = self.results[port.name].astype(_TYPES[port.type][1])
            address = self.addresses.get(port.name)
            if port.name in self.engine.open_outputs:
                allocator = self.allocators[port.name]
                address = allocator.reallocate_output_async(port.name, address, result.nbytes, 512, stream)
                allocator.notify_shape(port.name, self.engine.trt.Dims(result.shape))
                if not address:
                    return False
                assert address % 512 == 0
            assert address, f"{port.name} has no address"
            ctypes.memmove(address, np.ascontiguousarray(result).ctypes.data, result.nbytes)
        return True

    def _profile(self):
        profiles = self.engine.record.options.profiles
        return profiles[self.profiles[-1]] if profiles else None

    def _read(self, name):
        dtype = np.dtype(_TYPES[self.engine.ports[name].type][1])
        shape = self.shapes[name]
        count = math.prod(shape) * dtype.itemsize
        return np.frombuffer(ctypes.string_at(self.addresses[name], count), dtype).reshape(shape)
