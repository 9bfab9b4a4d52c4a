"""Tensors and plain data out of a torch file or a safetensors file; nothing in either is executed."""

import mmap
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from mpdeploy.archive import check_archive, is_archive
from mpdeploy.documents import parse_json
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.files import readable_file
from mpdeploy.runtime.plugins import importing_from
from mpdeploy.source.pickles import NOTED, wanted_globals

_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_MAP_FROM = 1 << 28  # bytes; larger torch files are mapped, not read
_SMALL = 1 << 20
_LARGEST_RANK = 64  # torch's own limit for what it computes with
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


def read_torch(path: Path, *, trust: bool = False) -> object:
    """Return what ``torch.save`` wrote.

    Without ``trust`` only tensors and plain data are loaded: raises ``ModelError`` that names the Python objects
    which the file wants otherwise.  Raises ``UsageError`` if it is damaged, or a tensor claims more memory than the
    file holds.
    """
    readable_file(path, "model")
    zipped = is_archive(path)
    if zipped:
        check_archive(path)
    size = path.stat().st_size
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of foreign kinds of file; they are refused below
            # A trusted pickle's classes come from where the user stands, as they would in Python.
            with importing_from(Path.cwd()) if trust else torch.serialization.safe_globals(_stand_ins()):
                content: object = torch.load(
                    path,
                    map_location="cpu",
                    weights_only=not trust,
                    mmap=True if zipped and size >= _MAP_FROM else None,
                )
    except ImportError as error:
        raise UsageError(
            f"the file needs Python code that is not here: {error}",
            where=str(path),
            remedy="start in the folder of that code, or install it; or save the model's state_dict() alone",
        ) from error
    except Exception as error:
        # A damaged file may fail anywhere in torch's reader, in any way.
        if not trust:
            raise _refused(path) from error
        raise UsageError(
            f"the file cannot be loaded: {type(error).__name__}: {error}",
            where=str(path),
            remedy="save its state_dict() alone: its classes were those of a script or notebook"
            if "__main__" in str(error)
            else "install what it was saved with, or save its state_dict() alone",
        ) from error
    if not trust:
        require_backed(_tensors(content), path)
    return content


class Dropped:
    """Stands for an object in a file that is neither a tensor nor plain data, and that nobody needs."""

    def __init__(self, *args: object) -> None:
        """Take what the object would be made from, and forget it."""

    def __setstate__(self, state: object) -> None:
        """Forget the state, too."""


def _stand_ins() -> list[Any]:
    return [(Dropped, name) for name in NOTED]


def _refused(path: Path) -> UsageError | ModelError:
    wanted = wanted_globals(path)
    if not wanted:
        return UsageError(
            "the file is damaged or not a torch file", where=str(path), remedy="save or download it again"
        )
    shown = ", ".join(wanted[:5]) + (f" and {len(wanted) - 5} more" if len(wanted) > 5 else "")
    return ModelError(
        f"the file asks for Python objects that could run code: {shown}",
        where=str(path),
        remedy="save its state_dict() alone; or, if you know who made it, load it with --trust",
    )


def require_backed(tensors: Iterable[torch.Tensor], path: Path) -> None:
    """Raise ``UsageError`` if a tensor that was read from ``path`` claims more memory than the file holds."""
    size = path.stat().st_size
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise UsageError(f"a tensor has the layout {tensor.layout}", where=str(path), remedy="store it dense")
        if tensor.is_meta:
            raise UsageError("a tensor has no numbers (device meta)", where=str(path), remedy="save the real weights")
        if tensor.is_quantized:
            raise UsageError("a tensor is quantised", where=str(path), remedy="save the FP32 weights")
        claimed = tensor.numel() * tensor.element_size()
        if claimed > max(size, _SMALL):
            raise UsageError(
                f"a tensor of shape {list(tensor.shape)} claims {claimed} bytes, the whole file has {size}",
                where=str(path),
                remedy="do not trust this file",
            )


def _tensors(content: object) -> Iterator[torch.Tensor]:
    pending, seen = [content], set()
    while pending:
        value = pending.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (dict, list, tuple)) and id(value) not in seen:
            seen.add(id(value))
            pending += value.values() if isinstance(value, dict) else value


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file by name, mapped from the file.

    Raises ``UsageError`` if the header is too long, or says anything that the file does not hold.
    """
    readable_file(path, "weights file")
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 10 or not 2 <= length <= min(_MAX_HEADER, size - 8):
            raise _no_safetensors(path, f"its header would have {length} bytes, the file has {size}")
        try:
            header = parse_json(stream.read(length))
        except (ValueError, RecursionError) as error:
            raise _no_safetensors(path, "its header is not JSON") from error
        if not isinstance(header, dict):
            raise _no_safetensors(path, "its header is not a table")
        header.pop("__metadata__", None)
        start = 8 + length
        places = {name: _place(name, entry, size - start, path) for name, entry in header.items()}
        _require_apart(places, path)
        if not any(end > begin for _, _, begin, end in places.values()):
            return {name: torch.empty(shape, dtype=dtype) for name, (dtype, shape, _, _) in places.items()}
        memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    return {name: _view(memory, start, *place) for name, place in places.items()}


Place = tuple[torch.dtype, tuple[int, ...], int, int]


def _place(name: str, entry: Any, available: int, path: Path) -> Place:
    try:
        dtype, shape = _DTYPES[entry["dtype"]], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        counts = [*shape, begin, end]
        sound = len(shape) <= _LARGEST_RANK and all(type(n) is int and 0 <= n < 1 << 63 for n in counts)
    except (KeyError, TypeError, ValueError) as error:
        raise _no_safetensors(path, f"its entry {name!r} is not one of a tensor") from error
    wanted = torch.empty(0, dtype=dtype).element_size()
    if sound:
        for axis in shape:
            wanted *= axis
    if not sound or not begin <= end <= available or end - begin != wanted:
        raise _no_safetensors(path, f"{name!r} of shape {list(shape)} does not lie where the header says")
    return dtype, shape, begin, end


def _require_apart(places: dict[str, Place], path: Path) -> None:
    last = 0
    for name, (_, _, begin, end) in sorted(places.items(), key=lambda item: item[1][2:]):
        if begin < last:
            raise _no_safetensors(path, f"{name!r} overlaps another tensor")
        last = end


def _view(memory: mmap.mmap, start: int, dtype: torch.dtype, shape: tuple[int, ...], begin: int, end: int) -> Any:
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    if (start + begin) % torch.empty(0, dtype=dtype).element_size():  # not aligned: torch cannot view it
        return torch.frombuffer(bytearray(memory[start + begin : start + end]), dtype=dtype).reshape(shape)
    count = (end - begin) // torch.empty(0, dtype=dtype).element_size()
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start + begin).reshape(shape)


def _no_safetensors(path: Path, reason: str) -> UsageError:
    return UsageError(f"not a sound safetensors file: {reason}", where=str(path), remedy="save or download it again")
