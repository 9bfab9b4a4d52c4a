"""The NVIDIA GPUs of this machine, asked of the driver itself: no package is needed, and none has to agree."""

import ctypes
import sys
from dataclasses import dataclass

# CUresult
_SUCCESS, _NO_DEVICE = 0, 100
_FAULTS = {
    35: "the driver is too old for the CUDA library here (error 35)",
    802: "the system is not initialised yet (error 802): is the fabric manager running?",
    803: "the driver's library does not go with the kernel's module (error 803): restart after an update",
    804: "the driver is too old, and this GPU takes no compatibility package (error 804)",
}
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CUdevice_attribute numbers


@dataclass(frozen=True)
class Gpu:
    """One GPU: its name, its compute capability as an integer (8.6 is 86), its memory in bytes."""

    name: str
    capability: int
    memory: int


def find_gpus() -> tuple[Gpu, ...]:
    """Return the visible GPUs in the driver's order; empty without a driver or a device."""
    driver = _load_driver()
    if driver is None or driver.cuInit(0) != 0:
        return ()
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(_describe(driver, index) for index in range(count.value))


def driver_fault() -> str:
    """Return why the driver shows no GPU although it is there, in words; empty if it works or there is nothing."""
    driver = _load_driver()
    code = 0 if driver is None else int(driver.cuInit(0))
    if code in (_SUCCESS, _NO_DEVICE):
        return ""
    return _FAULTS.get(code, f"the driver fails with error {code}")


def _load_driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None


def _describe(driver: ctypes.CDLL, index: int) -> Gpu:
    device = ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), device)
    memory = ctypes.c_size_t()
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    major, minor = (_attribute(driver, device, which) for which in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR))
    return Gpu(name.value.decode(errors="replace"), 10 * major + minor, memory.value)


def _attribute(driver: ctypes.CDLL, device: ctypes.c_int, which: int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), which, device)
    return value.value
