"""A zip archive from a stranger, judged by its directory alone, before anything in it is read."""

import contextlib
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mpdeploy.errors import UsageError

MAX_RATIO = 200  # deflate reaches 1000; weights that people compress stay below 20
MAX_ENTRIES = 1 << 20
_LOCAL_HEADER = 30  # bytes before an entry's name
_CHUNK = 1 << 20
_ENCRYPTED = 1

# Where a zip archive's directory is said to lie: the record at its very end, and, for large ones, two before that.
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")


def is_archive(path: Path) -> bool:
    """Tell whether a file begins as a zip archive does."""
    with path.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04"


def check_archive(path: Path) -> tuple[str, ...]:
    """Return the names in an archive that is sound.

    Raises ``UsageError`` if it is damaged, or if a name is absolute, leaves the archive, is a link or stands twice;
    if entries overlap, are encrypted, or would grow far beyond the archive's own size; or if other readers of
    archives might find other entries in it than this one does.
    """
    where = str(path)
    with opened(path) as archive:
        if not _has_one_directory(path):
            raise UsageError(
                "the archive is not to be trusted: where its directory lies can be read in several ways",
                where=where,
                remedy="do not load it; save it again with torch",
            )
        entries = archive.infolist()
        for reason in _faults(entries, path.stat().st_size):
            raise UsageError(f"the archive is not to be trusted: {reason}", where=where, remedy="do not load it")
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED:
                _measure(archive, entry, where)
    return tuple(entry.filename for entry in entries)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Yield the archive, to be read; damage that shows while it is read becomes a ``UsageError``."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, zlib.error) as error:
        raise UsageError("the archive is damaged", where=str(path), remedy="save or download it again") from error


def _faults(entries: list[zipfile.ZipInfo], size: int) -> Iterator[str]:
    if len(entries) > MAX_ENTRIES:
        yield f"it has {len(entries)} entries"
    # torch's reader does not tell large letters from small ones.
    places = Counter(entry.filename.casefold() for entry in entries)
    if len(places) != len(entries):
        yield f"{next(e.filename for e in entries if places[e.filename.casefold()] > 1)!r} stands in it twice"
    for entry in entries:
        name = entry.filename
        inside = PurePosixPath(name)
        if inside.is_absolute() or ".." in inside.parts or "\\" in name or ":" in name.split("/")[0]:
            yield f"{name!r} points outside"
        if stat.S_ISLNK(entry.external_attr >> 16):
            yield f"{name!r} is a link"
        if entry.flag_bits & _ENCRYPTED:
            yield f"{name!r} is encrypted"
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            yield f"{name!r} is compressed in an unusual way"
        if entry.compress_type == zipfile.ZIP_STORED and entry.compress_size != entry.file_size:
            yield f"{name!r} declares {entry.file_size} bytes and has {entry.compress_size}"
        if entry.file_size > MAX_RATIO * max(entry.compress_size, 64):
            yield f"{name!r} would grow from {entry.compress_size} to {entry.file_size} bytes"
    end = 0
    for entry in sorted(entries, key=lambda e: e.header_offset):
        if entry.header_offset < end:
            yield f"{entry.filename!r} overlaps another entry"
        end = entry.header_offset + _LOCAL_HEADER + entry.compress_size
    if end > size:
        yield "its entries reach past its end"


def _has_one_directory(path: Path) -> bool:
    """Tell whether the directory lies right before the archive's end, as that end says.

    Python's reader and torch's differ in where they look for it otherwise, and an archive could show each its own.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
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
        raise UsageError(
            f"the archive is not to be trusted: {entry.filename!r} is not the {entry.file_size} bytes that it declares",
            where=where,
            remedy="do not load it",
        )
