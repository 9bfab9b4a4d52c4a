"""One training at a time writes into a folder."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from mpdeploy.errors import UsageError
from mpdeploy.files import disk_faults

_LOCK = ".lock"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder of a training while the context lasts; raise ``UsageError`` if another training does.

    The lock goes with the process that holds it, however it ends.
    """
    path = folder / _LOCK
    with disk_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise UsageError(
                "another training is at work in this folder",
                where=str(folder),
                remedy="wait until it has ended, or name another folder with -o",
            ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # where an open file cannot be removed it stays, and says nothing
            path.unlink()
        lock.release()
