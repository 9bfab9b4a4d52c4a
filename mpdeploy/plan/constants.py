"""What the model's stored floats say of themselves: their range, and what rounding would take from them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mpdeploy.graph.tensors import StreamedTensor
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.rounding import Loss, LossMeter

_EXACT_ELEMENTS = 1 << 16  # larger tensors are weights, of whose ordinary rounding a bound says enough


@dataclass(frozen=True)
class ConstantFacts:
    """A stored tensor's finite range, its loss in the low format, and whether it holds integers only."""

    loss: Loss
    low: float
    high: float
    has_infinity: bool
    integral: bool


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor behind an initializer or a Constant node's output; None for other values."""
    if value.const_value is not None:
        return value.const_value
    producer = value.producer()
    if producer is None or producer.op_type != "Constant":
        return None
    attributes = producer.attributes
    if "value" in attributes:
        return attributes["value"].as_tensor()
    if "value_float" in attributes:
        return ir.tensor(np.float32(attributes["value_float"].as_float()))
    if "value_floats" in attributes:
        return ir.tensor(np.array(attributes["value_floats"].as_floats(), np.float32))
    if "value_int" in attributes:
        return ir.tensor(np.int64(attributes["value_int"].as_int()))
    if "value_ints" in attributes:
        return ir.tensor(np.array(attributes["value_ints"].as_ints(), np.int64))
    return None


def small_array(value: ir.Value | None, limit: int = 4096) -> NDArray[Any] | None:
    """Return a constant's array if it is stored and has at most ``limit`` elements; None otherwise."""
    if value is None or value.is_graph_input():
        return None
    tensor = constant_tensor(value)
    if tensor is None or tensor.dtype is ir.DataType.STRING or tensor.size > limit:
        return None
    return np.asarray(tensor.numpy())


def scalar(value: ir.Value | None) -> float | None:
    """Return the number if a value is a stored tensor of one element; None otherwise."""
    array = small_array(value, 1)
    return None if array is None or array.size != 1 or array.dtype.kind not in "iuf" else float(array.reshape(())[()])


def facts_of(tensor: ir.TensorProtocol, target: Format) -> ConstantFacts:
    """Read a float tensor once, chunk by chunk, and return its facts."""
    chunks: Iterable[NDArray[Any]] = tensor.chunks() if isinstance(tensor, StreamedTensor) else (tensor.numpy(),)
    meter = LossMeter(target, exact=tensor.size <= _EXACT_ELEMENTS)
    low, high, infinite, integral = np.inf, -np.inf, False, True
    for chunk in chunks:
        flat = np.asarray(chunk).ravel()
        if not flat.size:
            continue
        meter.add(flat)
        bottom, top = float(flat.min()), float(flat.max())
        if not (np.isfinite(bottom) and np.isfinite(top)):
            infinite = infinite or bool(np.isinf(flat).any())
            flat = flat[np.isfinite(flat)]
            bottom, top = float(flat.min(initial=np.inf)), float(flat.max(initial=-np.inf))
        low, high = min(low, bottom), max(high, top)
        # Small integers are exact in every format: only large ones need the closer look.
        if integral and max(-bottom, top) > target.max_exact_integer:
            integral = bool((flat == np.rint(flat)).all())
    if low > high:
        low = high = 0.0
    return ConstantFacts(meter.result(), low, high, infinite, integral)
