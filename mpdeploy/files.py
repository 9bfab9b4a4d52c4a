"""Reading and writing files whole: an output appears complete or not at all."""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from mpdeploy.errors import UsageError

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
    """Yield a path beside ``target`` to write to; what is still there at the end is removed.

    Parent folders are made.  A full disk, a read-only or impossible folder becomes a ``UsageError`` that names
    ``target``.
    """
    with disk_faults(target):
        if target.is_dir():
            raise UsageError("the output is an existing folder", where=str(target), remedy="name a file in it")
        _refuse_device(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = _hidden(target, "part")
        try:
            yield scratch
        finally:
            scratch.unlink(missing_ok=True)


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


@contextlib.contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """Yield an empty scratch folder beside ``target``; on success it becomes ``target``.

    An existing ``target`` is replaced as a whole, and survives every failure.
    """
    with disk_faults(target):
        _refuse_device(target)
        if target.is_file():
            raise UsageError("the output folder is an existing file", where=str(target), remedy="name another folder")
        target.parent.mkdir(parents=True, exist_ok=True)
    scratch = _hidden(target, "part")
    try:
        with disk_faults(target):
            scratch.mkdir()
            yield scratch
            if target.exists():
                old = _hidden(target, "old")
                target.replace(old)
                scratch.replace(target)
                shutil.rmtree(old)
            else:
                scratch.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_bytes(target: Path, content: bytes) -> None:
    """Write ``content`` to ``target`` atomically (see ``atomic_path``)."""
    with atomic_path(target) as scratch:
        scratch.write_bytes(content)


def write_text(target: Path, content: str) -> None:
    """Write ``content`` to ``target`` as UTF-8, atomically (see ``atomic_path``)."""
    write_bytes(target, content.encode("utf-8"))


def _hidden(target: Path, suffix: str) -> Path:
    # Without the target's own name, which may be as long as the file system allows.
    return target.with_name(f".mpdeploy-{secrets.token_hex(8)}.{suffix}")


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
