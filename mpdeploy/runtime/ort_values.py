"""Arrays in and out of ONNX Runtime, those of types that numpy has no name for included."""

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from mpdeploy.runtime.runner import Array

if TYPE_CHECKING:
    import onnxruntime

_ONNX_NAMES = {
    "tensor(bfloat16)": "BFLOAT16",
    "tensor(float8e4m3fn)": "FLOAT8E4M3FN",
    "tensor(float8e5m2)": "FLOAT8E5M2",
}


def is_plain(array: Any) -> bool:
    """Tell whether ONNX Runtime takes the array as it is: a numpy array of numpy's own types, or a list of them."""
    return not isinstance(array, np.ndarray) or array.dtype.kind in "biufcOUS"


def ort_value(array: Array, dtype: ir.DataType) -> "onnxruntime.OrtValue":
    """Return an ``OrtValue`` that shares the array's memory, which the caller must keep alive."""
    import onnxruntime

    if is_plain(array):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    raw = array.view(np.dtype(f"u{array.itemsize}"))
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(dtype))


def array_of(value: "onnxruntime.OrtValue") -> Any:
    """Return the array that an ``OrtValue`` on the CPU holds; None for an empty optional."""
    if not value.has_value():
        return None
    name = _ONNX_NAMES.get(value.data_type())
    if name is None:
        return value.numpy()
    dtype = np.dtype(ir.DataType[name].numpy())
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = ctypes.string_at(value.data_ptr(), count) if count else b""
    return np.frombuffer(raw, dtype).reshape(shape).copy()
