"""Engines that were built before, found by what they were built from.

The key is a hash of everything that decides an engine's bytes.  Each key has a lock, so that of several processes
that want the same engine one builds and the others wait; entries appear whole and are checked when they are read.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from mpdeploy import records
from mpdeploy.engine.options import BuildOptions
from mpdeploy.engine.target import Target
from mpdeploy.errors import UsageError
from mpdeploy.files import atomic_path, sha256_of, write_text
from mpdeploy.runtime.facts import ModelFacts

Make = Callable[[Path], None]


@dataclass(frozen=True)
class BuildCache:
    """A folder of engines by key.  It may be shared by any number of processes, and deleted at any time."""

    folder: Path

    def fetch_or_make(self, key: str, target: Path, make: Make) -> bool:
        """Write the engine of that key to ``target``; return whether it was there before.

        Otherwise ``make`` writes it, and it is kept.  Faults of ``make`` pass through and leave no entry.
        """
        lock = FileLock(self.folder / f"{key}.lock")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except OSError as error:
            raise UsageError(
                f"the build cache cannot be used: {error.strerror}",
                where=str(self.folder),
                remedy="name a folder that you can write to, or leave --cache out",
            ) from error
        try:
            return self._fetch_or_make(self.folder / f"{key}.engine", target, make)
        finally:
            lock.release()

    def _fetch_or_make(self, entry: Path, target: Path, make: Make) -> bool:
        digest = entry.with_suffix(".sha256")
        if entry.is_file() and digest.is_file() and digest.read_text() == sha256_of(entry):
            shutil.copyfile(entry, target)
            return True
        make(target)
        with atomic_path(entry) as scratch:
            shutil.copyfile(target, scratch)
        write_text(digest, sha256_of(target))
        return False


def cache_key(model: ModelFacts, options: BuildOptions, target: Target, backend: str, version: str) -> str:
    """Return the key, 64 hexadecimal digits, for an engine of these makings.

    The GPU of this machine counts, because a build may choose its kernels by measuring them on it.
    """
    makings = {
        "model": [file.sha256 for file in model.files],
        "options": records.to_builtins(replace(options, timing_cache=None)),
        "capabilities": target.capabilities,
        "gpu": target.gpu.name if target.gpu else None,
        "backend": backend,
        "version": version,
    }
    return hashlib.sha256(json.dumps(makings, sort_keys=True).encode()).hexdigest()
