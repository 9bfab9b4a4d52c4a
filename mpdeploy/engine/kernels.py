"""TensorRT for RTX compiles an engine's kernels on the GPU that runs it; this keeps them for the next time.

The cache lies beside the engine (``ENGINE.kernels``), or in the folder that ``MPDEPLOY_KERNEL_CACHE`` names.  It
belongs to one engine, library version and GPU: its first line says to which, and what bytes follow.  Whatever does not
match is compiled anew, and a cache that cannot be written is done without.
"""

import contextlib
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

from mpdeploy.engine.gpu import Gpu
from mpdeploy.engine.messages import capture
from mpdeploy.engine.record import EngineRecord
from mpdeploy.errors import UsageError
from mpdeploy.files import write_bytes

_FOLDER = "MPDEPLOY_KERNEL_CACHE"
_HEAD = "mpdeploy.kernels/1"


class KernelCache:
    """The compiled kernels of one engine.  ``path`` None keeps them in memory only."""

    def __init__(self, cache: Any, key: str, path: Path | None) -> None:
        self._cache, self._key, self._path = cache, key, path
        self._lock = threading.Lock()
        self._stored = b""

    def attach(self, config: Any) -> None:
        """Let a runtime configuration compile into this cache."""
        config.set_runtime_cache(self._cache)

    def load(self) -> bool:
        """Give TensorRT what was stored for this key; return whether it took it."""
        content = _read(self._path)
        head, _, blob = content.partition(b"\n")
        if not blob or head.decode(errors="replace") != _head(self._key, blob):
            return False
        with capture():  # what TensorRT says of a cache that it does not take concerns nobody
            taken = bool(self._cache.deserialize(blob))
        self._stored = content if taken else b""
        return taken

    def save(self) -> None:
        """Store what has been compiled so far, unless it stands there already.  Nothing is raised."""
        if self._path is None:
            return
        with self._lock:
            memory = self._cache.serialize()
            blob = b"" if memory is None else bytes(memory)
            content = f"{_head(self._key, blob)}\n".encode() + blob
            if blob and content != self._stored:
                with contextlib.suppress(UsageError):  # a folder that is not ours to write to
                    write_bytes(self._path, content)
                    self._stored = content


def kernel_cache_path(engine: Path, record: EngineRecord) -> Path | None:
    """Return where an engine's kernels are stored; None inside a bundle, where nothing may change."""
    if folder := os.environ.get(_FOLDER):
        return Path(folder) / f"{record.engine.sha256}.kernels"
    home = engine.resolve().parent
    if any((folder / "manifest.sha256").is_file() for folder in (home, *home.parents[:1])):
        return None
    return engine.parent / f"{engine.name}.kernels"


def kernel_cache_key(record: EngineRecord, version: str, gpu: Gpu) -> str:
    """Return the key of the kernels that this library compiles of this engine for this GPU."""
    return hashlib.sha256(f"{record.engine.sha256} {version} {gpu.name} {gpu.capability}".encode()).hexdigest()


def runtime_config(module: Any, engine: Any, path: Path | None, key: str) -> tuple[Any, KernelCache] | None:
    """Return the engine's runtime configuration with its kernel cache; None where this TensorRT has no such cache.

    Kernels for a dynamic shape are compiled before its first run and not beside it: the same inputs then always go
    through the same kernels.
    """
    if not (hasattr(module, "IRuntimeCache") and hasattr(engine, "create_runtime_config")):
        return None
    config = engine.create_runtime_config()
    strategy = getattr(module, "DynamicShapesKernelSpecializationStrategy", None)
    if strategy is not None:
        config.dynamic_shapes_kernel_specialization_strategy = strategy.EAGER
    kernels = KernelCache(config.create_runtime_cache(), key, path)
    kernels.load()
    kernels.attach(config)
    return config, kernels


def _head(key: str, blob: bytes) -> str:
    return f"{_HEAD} {key} {hashlib.sha256(blob).hexdigest()}"


def _read(path: Path | None) -> bytes:
    try:
        return b"" if path is None else path.read_bytes()
    except OSError:
        return b""
