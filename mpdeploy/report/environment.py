"""The machine and the versions that a report was made with."""

import importlib.metadata
import os
import platform

from mpdeploy.report.record import Fact

_PACKAGES = ("numpy", "onnx", "onnx-ir", "onnxruntime-gpu", "onnxruntime", "torch", "openvino", "tensorrt")


def environment() -> tuple[Fact, ...]:
    """Return the operating system, the processor's kind and cores, Python and the packages that matter."""
    found = [f"{name} {version}" for name in _PACKAGES if (version := _version(name)) is not None]
    return (
        Fact("System", f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} cores"),
        Fact("Python", f"{platform.python_version()} ({platform.python_implementation()})"),
        Fact("Packages", ", ".join(found)),
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
