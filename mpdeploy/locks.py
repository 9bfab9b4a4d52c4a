"""One command at a time writes into a folder."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from mpdeploy.errors import UsageError
from mpdeploy.files import disk_faults

_LOCK = ".lock"


@contextlib.contextmanager
def only_one(what: str, folder: Path) -> Iterator[None]:
    """Hold a folder, which is made if need be, while the context lasts.

    Args:
        what: What is at work in it, for the message: "training".
        folder: The folder.

    Raises:
        UsageError: Another one is at work there.  The lock goes with the process that holds it, however it ends.
    """
    path = folder / _LOCK
    with disk_faults(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=0)
        try:
            lock.acquire()
        except Timeout as error:
            raise UsageError(
                f"another {what} is at work in this folder",
                where=str(folder),
                remedy="wait until it has ended, or name another folder with -o",
            ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # where an open file cannot be removed it stays, and says nothing
            path.unlink()
        lock.release()
