"""Hidden folders beside an output, in which it is made.

Each is locked for as long as its process lives.  So whoever writes there next can tell what a killed process left, and
removes it; if that process was killed while it put finished files in their places, the rest of them follow first.
"""

import contextlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

PREFIX, SUFFIX = ".mpdeploy-", ".part"
_NEW, _OLD, _MOVES = "new", "old", "moves.json"


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Yield a hidden folder in ``parent``, which is made if need be; remove it at the end, and strays before it."""
    parent.mkdir(parents=True, exist_ok=True)
    sweep(parent)
    folder = parent / f"{PREFIX}{secrets.token_hex(8)}{SUFFIX}"  # not the output's own name, which may be long
    lock = None
    try:
        lock = _claim(folder)
        yield folder
    finally:
        try:
            _clear(folder)
        finally:
            _unlock(lock)


def _clear(folder: Path) -> None:
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:  # a signal in the middle of it
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _claim(folder: Path) -> int | None:
    while True:
        folder.mkdir()
        with contextlib.suppress(FileNotFoundError):  # swept by another process before it was locked
            lock = _lock(folder)
            if lock is None or _is_at(lock, folder):
                return lock
            os.close(lock)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def is_scratch(path: Path) -> bool:
    """Tell whether a path has the name of a hidden folder of ours."""
    return path.name.startswith(PREFIX) and path.name.endswith(SUFFIX)


def sweep(folder: Path) -> None:
    """Remove what processes that are no more left half-made in ``folder``; finish what they had begun to move."""
    for path in list(folder.glob(f"{PREFIX}*{SUFFIX}")):
        with contextlib.suppress(OSError):
            lock = _lock(path, wait=False)
            if lock is None:
                continue
            try:
                _remove(path, lock)
            finally:
                _unlock(lock)


def _remove(path: Path, lock: int) -> None:
    if not stat.S_ISDIR(os.fstat(lock).st_mode):
        path.unlink()
        return
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        Moves(**json.loads((path / _MOVES).read_bytes())).carry_out(path)
    shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class Moves:
    """What is left to do when the files of an output are finished, by names beside the scratch folder.

    ``into`` is the folder beneath the scratch folder's parent that they go to, empty for the parent itself; ``names``
    are those that come, ``stale`` those of an earlier run that go.
    """

    into: str
    names: list[str]
    stale: list[str]

    def note(self, scratch: Path) -> None:
        """Write down what is to be done, for whoever finds the folder after a kill."""
        (scratch / _MOVES).write_text(json.dumps(asdict(self)), encoding="utf-8")

    def carry_out(self, scratch: Path) -> None:
        """Put all that is not there yet in its place, and move what was there before into the scratch folder."""
        if not all(_is_bare(name) for name in (*self.names, *self.stale, self.into or "x")):
            return  # not written by us
        home, new, old = scratch.parent / self.into, scratch / _NEW, scratch / _OLD
        old.mkdir(exist_ok=True)
        for name in (*self.stale, *self.names):
            comes = name in self.names
            if comes and not os.path.lexists(new / name):
                continue  # it is there already
            if os.path.lexists(home / name) and not (comes and (new / name).is_file() and (home / name).is_file()):
                (home / name).rename(old / name)
            if comes:
                (new / name).replace(home / name)


def _is_bare(name: str) -> bool:
    return Path(name).name == name and name not in ("", ".", "..")


def _lock(path: Path, *, wait: bool = True) -> int | None:
    """Return a descriptor that holds a lock on the folder; None where it is held, or cannot be locked at all."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(handle)
        return None
    return handle


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)
