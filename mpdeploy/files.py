"""Reading and writing files whole: an output appears complete or not at all."""

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from mpdeploy.errors import UsageError
from mpdeploy.exchange import Owns, install, workplace
from mpdeploy.scratch import scratch_folder

_CHUNK = 1 << 20


def readable_file(path: Path, what: str) -> Path:
    """Return ``path`` if it is a non-empty regular file; raise ``UsageError`` that calls it ``what`` otherwise."""
    if not path.exists():
        raise UsageError(f"{what} not found", where=str(path), remedy="check the path")
    if path.is_dir():
        raise UsageError(f"{what} is a folder, not a file", where=str(path), remedy="name the file inside it")
    if not path.is_file():
        raise UsageError(f"{what} is not a regular file", where=str(path), remedy="save it to a file first")
    try:
        with path.open("rb") as stream:
            empty = not stream.read(1)
    except OSError as error:
        raise UsageError(f"{what} cannot be read: {error.strerror}", where=str(path)) from error
    if empty:
        raise UsageError(f"{what} is empty", where=str(path), remedy="write or download it again")
    return path


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes as 64 hexadecimal digits, read in constant memory."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def scratch_path(target: Path) -> Iterator[Path]:
    """Yield a path in a hidden folder beside ``target`` to write to; what is still there at the end is removed.

    Parent folders are made, and what killed processes left beside ``target`` is removed.  A full disk, a read-only or
    impossible folder becomes a ``UsageError`` that names ``target``.
    """
    with disk_faults(target):
        if target.is_dir():
            raise UsageError("the output is an existing folder", where=str(target), remedy="name a file in it")
        _refuse_device(target)
        with scratch_folder(target.parent) as folder:
            yield folder / "new"


def _refuse_device(target: Path) -> None:
    if target.exists() and not target.is_file() and not target.is_dir():  # root may replace even /dev/null
        raise UsageError("the output would replace a device or a pipe", where=str(target), remedy="name another output")


def publish(scratch: Path, target: Path) -> None:
    """Put a finished scratch file in the place of ``target``, after its bytes are on disk."""
    with disk_faults(target):
        with scratch.open("rb") as stream:
            os.fsync(stream.fileno())
        scratch.replace(target)


@contextlib.contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a scratch path; on success it replaces ``target``, and an existing ``target`` survives every failure.

    Faults as in ``scratch_path``.
    """
    with scratch_path(target) as scratch:
        yield scratch
        publish(scratch, target)


def _everything(name: str) -> bool:
    return True


@contextlib.contextmanager
def atomic_folder(target: Path, owns: Owns = _everything) -> Iterator[Path]:
    """Yield an empty scratch folder; on success it becomes ``target``, and an existing one survives every failure.

    ``owns`` tells which names in an existing ``target`` belong to the output: these are replaced, all of them in one
    step (see ``mpdeploy.exchange``), and any others stay.
    """
    with disk_faults(target):
        _refuse_device(target)
        if target.is_file():
            raise UsageError(
                "cannot write the output: an existing file is no folder",
                where=str(target),
                remedy="name another folder",
            )
        home = target.resolve()  # where a link leads, not the link
        with scratch_folder(workplace(home, owns)) as scratch:
            new = scratch / "new"
            new.mkdir()
            yield new
            install(new, home, owns)


def write_bytes(target: Path, content: bytes) -> None:
    """Write ``content`` to ``target`` atomically (see ``atomic_path``)."""
    with atomic_path(target) as scratch:
        scratch.write_bytes(content)


def write_text(target: Path, content: str) -> None:
    """Write ``content`` to ``target`` as UTF-8, atomically (see ``atomic_path``)."""
    write_bytes(target, content.encode("utf-8"))


@contextlib.contextmanager
def disk_faults(target: Path) -> Iterator[None]:
    """Turn a full disk, a read-only or impossible folder into a ``UsageError`` that names ``target``."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "free some space or choose another folder"
        else:
            remedy = "choose a folder that you can write to"
        reason = error.strerror or type(error).__name__
        raise UsageError(f"cannot write the output: {reason}", where=str(target), remedy=remedy) from error
