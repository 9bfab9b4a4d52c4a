"""Before an engine is loaded: is this the file that was built, and is this the machine it was built for?

An engine is machine code.  TensorRT itself answers a wrong one with a cryptic line or, after a change that it
cannot see, with wrong numbers; the sidecar knows better.
"""

import platform
from pathlib import Path

from mpdeploy import records
from mpdeploy.engine.gpu import Gpu, driver_fault
from mpdeploy.engine.options import Feature
from mpdeploy.engine.record import EngineRecord, sidecar_of
from mpdeploy.engine.toolkit import Flavour, Toolkit, load_toolkit
from mpdeploy.errors import DependencyError, UsageError
from mpdeploy.files import readable_file, sha256_of

_BUILD_AGAIN = "build it again with 'mpdeploy build'"
_COPY_AGAIN = f"copy the sidecar again, or {_BUILD_AGAIN}"
_UNKNOWN = f"use the version of mpdeploy that wrote it, or {_BUILD_AGAIN}"
_AMPERE = 80  # hardware-compatible engines run from this compute capability on


def read_engine(path: Path) -> EngineRecord:
    """Return the record of the engine in ``path`` after holding the file's bytes to it; needs no GPU.

    Raises ``UsageError`` if the engine or its sidecar is missing, the file was cut off, changed or replaced since
    it was built, or the sidecar is another engine's, damaged or senseless.
    """
    readable_file(path, "engine")
    sidecar = sidecar_of(path)
    if not sidecar.is_file():
        raise UsageError(
            "the engine has no sidecar, so nothing says what it is or where it runs",
            where=str(sidecar),
            remedy=f"copy the sidecar along with the engine, or {_BUILD_AGAIN}",
        )
    record = _read_sidecar(sidecar)
    size = path.stat().st_size
    if size < record.engine.bytes:
        raise UsageError(
            f"the engine is cut off: {size:,} of {record.engine.bytes:,} bytes",
            where=str(path),
            remedy=f"copy it again in binary mode, or {_BUILD_AGAIN}",
        )
    if size != record.engine.bytes or sha256_of(path) != record.engine.sha256:
        raise UsageError(
            "the engine is not the file that its sidecar describes",
            where=str(path),
            remedy=f"copy engine and sidecar together in binary mode, or {_BUILD_AGAIN}",
        )
    return record


def _read_sidecar(path: Path) -> EngineRecord:
    try:
        record = records.load(EngineRecord, path)
    except UsageError as error:
        raise UsageError(
            f"the engine's sidecar cannot be read: {error.what}", where=str(path), remedy=_COPY_AGAIN
        ) from error
    if record.backend not in {flavour.value for flavour in Flavour}:
        raise UsageError(f"the sidecar names no back end of ours: {record.backend!r}", where=str(path), remedy=_UNKNOWN)
    if not record.source.files or not record.capabilities:
        lacking = "GPUs that it runs on" if record.source.files else "model that it was built from"
        raise UsageError(f"the sidecar names no {lacking}", where=str(path), remedy=_COPY_AGAIN)
    return record


def toolkit_of(record: EngineRecord) -> Toolkit:
    """Return the TensorRT that an engine needs; ``DependencyError`` if it is not installed."""
    return load_toolkit(Flavour(record.backend))


def check_fit(record: EngineRecord, toolkit: Toolkit, gpus: tuple[Gpu, ...], where: str) -> Gpu:
    """Return the GPU that will run the engine.

    Raises ``DependencyError`` in one line for another version of TensorRT, another operating system, a GPU of
    another compute capability, or none.
    """
    if not _version_fits(record, toolkit.version):
        raise DependencyError(
            f"the engine was built by {toolkit.flavour.title} {record.backend_version}, "
            f"this machine has {toolkit.version}",
            where=where,
            remedy=f"install that version, or {_BUILD_AGAIN}",
        )
    system = this_system()
    # Engines for RTX are the same on every operating system.
    if toolkit.flavour is Flavour.TENSORRT and record.system != system:
        raise DependencyError(
            f"the engine was built on {record.system}, this is {system}", where=where, remedy=_BUILD_AGAIN
        )
    targets = ", ".join(map(str, record.capabilities))
    if not gpus:
        raise DependencyError(
            f"the engine runs on GPUs of SM {targets}, and this machine has none"
            + (f" that works: {fault}" if (fault := driver_fault()) else ""),
            where=where,
            remedy="run it there; 'mpdeploy run' on its ONNX model needs no GPU",
        )
    if not _capability_fits(record, gpus[0].capability):
        raise DependencyError(
            f"the engine is for SM {targets}, this GPU ({gpus[0].name}) is SM {gpus[0].capability}",
            where=where,
            remedy=f"build it again with --sm {gpus[0].capability}, or on this GPU",
        )
    return gpus[0]


def this_system() -> str:
    """Return operating system and processor as a sidecar writes them."""
    return f"{platform.system()} {platform.machine()}"


def _version_fits(record: EngineRecord, version: str) -> bool:
    if Feature.VERSION_COMPATIBLE in record.options.features:
        return _major(record.backend_version) == _major(version)
    return record.backend_version == version


def _major(version: str) -> str:
    return version.partition(".")[0]


def _capability_fits(record: EngineRecord, capability: int) -> bool:
    if Feature.HARDWARE_COMPATIBLE in record.options.features and capability >= _AMPERE:
        return True
    return capability in record.capabilities
