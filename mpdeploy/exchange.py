"""A finished folder put in the place of an older one, in one step wherever that is possible."""

import ctypes
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from mpdeploy.scratch import Moves, is_scratch

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h

Owns = Callable[[str], bool]
"""Tells of a name in a folder whether it belongs to the output that is written there."""


def workplace(home: Path, owns: Owns) -> Path:
    """Return the folder in which the scratch folder for a new ``home`` has to lie: its parent, or ``home`` itself."""
    if not home.is_dir():
        return home.parent
    return home.parent if _may_be_exchanged(home, owns) else home


def install(new: Path, home: Path, owns: Owns) -> None:
    """Put the finished folder ``new`` in the place of ``home``.

    In one step, if all in ``home`` is the output's own: then nobody ever sees files of two runs.  What ``owns``
    disclaims stays where it is; then, and where a folder cannot be exchanged, the files change back to back, and a
    process killed in between is completed by the next one that writes there (see ``mpdeploy.scratch``).
    """
    scratch = new.parent
    flush(new)
    if not home.exists():
        new.rename(home)
        return
    shutil.copymode(home, new)
    whole = _may_be_exchanged(home, owns)
    if whole and _exchanged(new, home):
        return
    if whole:
        shutil.move(str(new), str(scratch / home.name))
        new.mkdir()
        (scratch / home.name).rename(new / home.name)
        moves = Moves("", [home.name], [])
    else:
        names = sorted(path.name for path in new.iterdir())
        there = (path.name for path in home.iterdir() if not is_scratch(path))
        stale = sorted(name for name in there if owns(name) and name not in names)
        moves = Moves("" if scratch.parent == home else home.name, names, stale)
    moves.note(scratch)
    flush(scratch)
    moves.carry_out(scratch)


def flush(folder: Path) -> None:
    """Let all files and folders beneath ``folder`` reach the disk."""
    for path in (*folder.rglob("*"), folder):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            continue
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _may_be_exchanged(home: Path, owns: Owns) -> bool:
    here = Path.cwd()
    return (
        os.access(home.parent, os.W_OK | os.X_OK)
        and not home.is_mount()
        and home != here
        and home not in here.parents  # a shell that stands in it would be left in a folder that is no more
        and all(owns(path.name) or is_scratch(path) for path in home.iterdir())
    )


def _exchanged(one: Path, other: Path) -> bool:
    """Let two folders change places in one step; False where the system cannot."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if call is None:
        return False
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # the kernel, or this file system, has no such thing
        return False
    raise OSError(code, os.strerror(code), str(other))
