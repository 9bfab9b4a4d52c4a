"""A zip archive from a stranger, judged by its directory alone, before anything in it is read."""

import contextlib
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from mpdeploy.errors import UsageError
from mpdeploy.memory import free_memory

MAX_RATIO = 200  # deflate reaches 1032; weights that people compress stay below 20
MAX_ENTRIES = 1 << 20
_DEFLATE_RATIO = 1032  # the most that deflate can do (zlib's technical details)
_LOCAL_HEADER = 30  # bytes before an entry's name
_CHUNK = 1 << 20
_ENCRYPTED = 1

# Where a zip archive's directory is said to lie: the record at its very end, and, for large ones, two before that.
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    OSError,
    EOFError,
    ValueError,
    OverflowError,
    NotImplementedError,
    RuntimeError,  # zipfile's word for what needs a password
)
"""What reading a damaged archive raises."""


def is_archive(path: Path) -> bool:
    """Tell whether a file begins as a zip archive does."""
    with path.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04"


def check_archive(source: Path | IO[bytes], where: str = "") -> tuple[str, ...]:
    """Return the names in an archive of torch's that is sound; ``where`` names it, if it is not a file of its own.

    Raises ``UsageError`` if it is damaged or what ``sound_entries`` refuses; if a name is absolute, leaves the archive,
    is a link or stands twice; if it would grow far beyond its own size, or beyond memory; or if other readers of
    archives might find other entries in it than this one does.
    """
    where = where or str(source)
    with opened(source, where) as archive:
        entries = sound_entries(archive, where)
        if not _has_one_directory(archive):
            raise _untrusted("where its directory lies can be read in several ways", where, "save it again with torch")
        for reason in _faults(entries):
            raise _untrusted(reason, where)
        packed = [entry for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
        if sum(entry.file_size for entry in packed) > free_memory():
            raise _untrusted("unpacked it would not fit into memory", where)
        for entry in packed:
            _measure(archive, entry, where)
    return tuple(entry.filename for entry in entries)


def sound_entries(archive: zipfile.ZipFile, where: str) -> list[zipfile.ZipInfo]:
    """Return the entries of an archive whose directory can be believed, whatever they hold.

    Raises ``UsageError`` that names the first which is encrypted, compressed in an unusual way, overlaps another, or
    declares more than its bytes can hold.
    """
    entries = archive.infolist()
    for reason in _lies(entries, archive.start_dir):
        raise _untrusted(reason, where)
    return entries


@contextlib.contextmanager
def opened(
    source: Path | IO[bytes],
    where: str = "",
    *,
    what: str = "the archive is damaged",
    remedy: str = "save or download it again",
) -> Iterator[zipfile.ZipFile]:
    """Yield the archive, to be read; damage that shows while it is read becomes a ``UsageError``."""
    try:
        with zipfile.ZipFile(source) as archive:
            yield archive
    except DAMAGE as error:
        raise UsageError(what, where=where or str(source), remedy=remedy) from error


def _untrusted(reason: str, where: str, remedy: str = "") -> UsageError:
    return UsageError(
        f"the archive is not to be trusted: {reason}",
        where=where,
        remedy=f"do not load it{'; ' if remedy else ''}{remedy}",
    )


def _lies(entries: list[zipfile.ZipInfo], end_of_data: int) -> Iterator[str]:
    if len(entries) > MAX_ENTRIES:
        yield f"it has {len(entries)} entries"
    for entry in entries:
        name = entry.filename
        if entry.flag_bits & _ENCRYPTED:
            yield f"{name!r} is encrypted"
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            yield f"{name!r} is compressed in an unusual way"
        if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
            yield f"{name!r} declares {entry.file_size} bytes and has {entry.compress_size}"
        if entry.file_size > _DEFLATE_RATIO * max(entry.compress_size, 64):
            yield f"{name!r} cannot grow from {entry.compress_size} to {entry.file_size} bytes"
    end = 0
    for entry in sorted(entries, key=lambda e: e.header_offset):
        if entry.header_offset < end:
            yield f"{entry.filename!r} overlaps another entry"
        end = entry.header_offset + _LOCAL_HEADER + entry.compress_size
    if end > end_of_data:
        yield "its entries reach past its end"


def _faults(entries: Iterable[zipfile.ZipInfo]) -> Iterator[str]:
    # torch's reader does not tell large letters from small ones.
    places = Counter(entry.filename.casefold() for entry in entries)
    for entry in entries:
        name = entry.filename
        inside = PurePosixPath(name)
        if places[name.casefold()] > 1:
            yield f"{name!r} stands in it twice"
        if inside.is_absolute() or ".." in inside.parts or "\\" in name or ":" in name.split("/")[0]:
            yield f"{name!r} points outside"
        if stat.S_ISLNK(entry.external_attr >> 16):
            yield f"{name!r} is a link"
        if entry.file_size > MAX_RATIO * max(entry.compress_size, 64):
            yield f"{name!r} would grow from {entry.compress_size} to {entry.file_size} bytes"


def _has_one_directory(archive: zipfile.ZipFile) -> bool:
    """Tell whether the directory lies right before the archive's end, as that end says.

    Python's reader and torch's differ in where they look for it otherwise, and an archive could show each its own.
    """
    stream = archive.fp
    assert stream is not None  # noqa: S101 - the archive is open
    size = stream.seek(0, 2)
    stream.seek(max(0, size - _END.size - _LOCATOR.size - _END64.size))
    tail = stream.read()
    if len(tail) < _END.size:
        return False
    sign, _, _, _, _, length, offset, comment = _END.unpack(tail[-_END.size :])
    end, tail = size - _END.size, tail[: -_END.size]
    if sign != b"PK\x05\x06" or comment:
        return False
    if len(tail) >= _LOCATOR.size and tail[-_LOCATOR.size :].startswith(b"PK\x06\x07"):
        _, _, place, _ = _LOCATOR.unpack(tail[-_LOCATOR.size :])
        tail = tail[: -_LOCATOR.size]
        end -= _LOCATOR.size + _END64.size
        if len(tail) < _END64.size or place != end:
            return False
        sign, _, _, _, _, _, _, _, length, offset = _END64.unpack(tail)
        if sign != b"PK\x06\x06":
            return False
    return int(offset) + int(length) == end


def _measure(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, where: str) -> None:
    """Unpack an entry into nothing: is it what it declares?"""
    left = entry.file_size
    with archive.open(entry) as stream:
        while chunk := stream.read(_CHUNK):
            left -= len(chunk)
    if left:
        raise _untrusted(f"{entry.filename!r} is not the {entry.file_size} bytes that it declares", where)
