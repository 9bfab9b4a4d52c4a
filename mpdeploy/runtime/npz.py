"""``.npz`` files: judged by what they declare before any number is read, and read array by array.

The format: a zip archive of ``.npy`` entries, each a header in Python's notation and the numbers behind it
(numpy.lib.format).
"""

import ast
import contextlib
import math
import os
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from mpdeploy.archive import DAMAGE, opened, sound_entries
from mpdeploy.errors import UsageError
from mpdeploy.files import readable_file
from mpdeploy.memory import free_memory
from mpdeploy.runtime.lazy import Header, LazyFeed
from mpdeploy.runtime.runner import Array

# What stands before an entry in a zip archive: a sign, and how long its name and its extra field are.
_LOCAL, _LOCAL_SIGN, _UTF8 = struct.Struct("<4s22x2H"), b"PK\x03\x04", 0x800
_MAGIC = b"\x93NUMPY"
_LENGTH_BYTES: dict[tuple[int, ...], int] = {
    (1, 0): 2,
    (2, 0): 4,
    (3, 0): 4,
}  # by version: how long the number is that says the header's length
_LONGEST_HEADER = 10_000  # bytes; numpy's own limit for files that it does not trust
_LARGEST_RANK = 64  # numpy's limit
_LARGEST = 1 << 62  # bytes; what numpy can count
_MOST_ARRAYS = 1 << 16
_ROOM = 2  # times an array must fit into memory: itself, and a copy in the type that the model takes
_CHUNK = 1 << 20
_REMEDY = "write it with numpy.savez, arrays of numbers only"


def read_npz(path: Path) -> LazyFeed:
    """Return the arrays of an ``.npz`` file by name, each read when it is first asked for; nothing is unpickled.

    Raises ``UsageError`` that names file and array if the file is none, is damaged, or holds an array that is no plain
    one or declares more than is there; and, once it is asked for, an array that does not fit into memory.
    """
    readable_file(path, "data file")
    with path.open("rb") as stream:
        if stream.read(len(_MAGIC)) == _MAGIC:
            raise UsageError(
                "the data is a single array without a name",
                where=str(path),
                remedy="save it with numpy.savez(FILE, INPUT_NAME=array)",
            )
    places: dict[str, _Place] = {}
    with _archive(path) as archive:
        entries = sound_entries(archive, str(path))
        stamp = _stamp(path)
        if len(entries) > _MOST_ARRAYS:
            raise UsageError(f"the data holds {len(entries):,} arrays", where=str(path), remedy=_REMEDY)
        headers: dict[str, Header] = {}
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            if name in headers:
                raise UsageError(f"the data holds '{name}' twice", where=str(path), remedy=_REMEDY)
            with _stream_of(archive, entry, path) as stream:
                headers[name], _ = _header(stream, entry, path)
            places[name] = _Place(path, entry, stamp)
    return LazyFeed(headers, lambda name: _read(name, places[name]))


def save_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays under any names, so that ``read_npz`` and ``numpy.load`` return them.

    Texts are stored in numpy's own type for them.  BF16, of which numpy's files forget the name, is stored as its
    bits (``V2``), and is BF16 again where it feeds a model.
    """
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:  # numpy.savez refuses an array called "file"
        for name in arrays:
            array = np.asanyarray(arrays[name])
            plain = array.astype(str) if array.dtype.kind == "O" else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, plain, allow_pickle=False)


def _archive(path: Path) -> contextlib.AbstractContextManager[zipfile.ZipFile]:
    return opened(path, what="the data cannot be read: not an .npz file, or a damaged one", remedy=_REMEDY)


@contextlib.contextmanager
def _stream_of(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> Iterator[IO[bytes]]:
    try:
        with archive.open(entry) as stream:
            yield stream
    except DAMAGE as error:
        raise _refused(entry.filename.removesuffix(".npy"), path, "is damaged") from error


@dataclass(frozen=True)
class _Place:
    """Where an array lies: in which file, as that was when its directory was judged, and in which entry."""

    path: Path
    entry: zipfile.ZipInfo
    stamp: tuple[int, ...]


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(name: str, place: _Place) -> Array:
    """Read one array; its entry is found by the directory that was judged, which is not read again for each."""
    path = place.path
    try:
        with path.open("rb") as file:
            if _stamp(path) != place.stamp:
                raise _refused(name, path, "is not what it was: the file has changed", "read the data again")
            with _entry_of(file, place.entry) as stream:
                header, fortran = _header(stream, place.entry, path)
                size = header.nbytes
                if size * _ROOM > free_memory():
                    says = f"takes {size:,} bytes, which do not fit into memory"
                    raise _refused(name, path, says, "store it in parts")
                numbers = _numbers(stream, size)
    except DAMAGE as error:
        raise _refused(name, path, "is damaged") from error
    array = numbers.view(header.dtype)
    return array.reshape(header.shape[::-1]).T if fortran else array.reshape(header.shape)


def _entry_of(file: IO[bytes], entry: zipfile.ZipInfo) -> zipfile.ZipExtFile:
    """Return an entry's content, its checksum compared at the end; what stands before it must name the same entry."""
    file.seek(entry.header_offset)
    sign, name_length, extra_length = _LOCAL.unpack(file.read(_LOCAL.size))
    if sign != _LOCAL_SIGN or file.read(name_length) != entry.orig_filename.encode(
        "utf-8" if entry.flag_bits & _UTF8 else "cp437"
    ):
        raise zipfile.BadZipFile
    file.seek(extra_length, os.SEEK_CUR)
    return zipfile.ZipExtFile(file, "r", entry)


def _numbers(stream: zipfile.ZipExtFile | IO[bytes], size: int) -> Array:
    content = np.empty(size, np.uint8)
    done = 0
    while chunk := stream.read(_CHUNK):  # to the end: only then its checksum is compared
        content[done : done + len(chunk)] = np.frombuffer(chunk, np.uint8)
        done += len(chunk)
    if done != size:
        raise EOFError
    return content


def _header(stream: zipfile.ZipExtFile | IO[bytes], entry: zipfile.ZipInfo, path: Path) -> tuple[Header, bool]:
    """Read what an entry says of its array, and whether its first axis is the innermost one (as in Fortran)."""
    name = entry.filename.removesuffix(".npy")
    start = stream.read(len(_MAGIC) + 2)
    if start[: len(_MAGIC)] != _MAGIC:
        raise _refused(name, path, "is not an array")
    version = tuple(start[len(_MAGIC) :])
    if version not in _LENGTH_BYTES:
        raise _refused(name, path, f"is in a version of the format that there is not ({'.'.join(map(str, version))})")
    width = _LENGTH_BYTES[version]
    length = int.from_bytes(stream.read(width), "little")
    text = stream.read(min(length, _LONGEST_HEADER))
    if len(text) < length:
        raise _refused(name, path, "has a header that is too long, or cut short")
    try:
        dtype, shape, fortran = _parsed(text.decode("utf-8" if version == (3, 0) else "latin-1"))
    except Exception as error:  # numpy's reader of types fails in many ways
        raise _refused(name, path, "has a damaged header") from error
    if dtype.hasobject:
        raise _refused(name, path, "holds Python objects")
    header = Header(shape, dtype)
    held = entry.file_size - len(_MAGIC) - 2 - width - length
    if header.nbytes != held:
        raise _refused(name, path, f"declares {header.nbytes:,} bytes and holds {held:,}")
    return header, fortran


def _parsed(text: str) -> tuple["np.dtype[Any]", tuple[int, ...], bool]:
    """Return type, shape, and order; raise whatever comes to it for a header that is none."""
    said = ast.literal_eval(text.strip())
    shape, fortran = said["shape"], said["fortran_order"]
    dtype: np.dtype[Any] = np.lib.format.descr_to_dtype(said["descr"])
    counts = type(shape) is tuple and all(type(size) is int and size >= 0 for size in shape)
    if set(said) != {"descr", "fortran_order", "shape"} or not counts or type(fortran) is not bool:
        raise ValueError(text)
    if len(shape) > _LARGEST_RANK or not dtype.itemsize:
        raise ValueError(text)
    if math.prod(size for size in shape if size) * dtype.itemsize > _LARGEST:  # numpy counts so, even of empty arrays
        raise ValueError(text)
    return dtype, shape, fortran


def _refused(name: str, path: Path, reason: str, remedy: str = _REMEDY) -> UsageError:
    return UsageError(f"the array '{name}' {reason}", where=str(path), remedy=remedy)
