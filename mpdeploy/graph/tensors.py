"""Tensors that stay in their file, or are computed from one, until they are written: chunk by chunk."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from mpdeploy.errors import ModelError, UsageError
from mpdeploy.graph.wire import SLOT
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.rounding import cast

CHUNK_BYTES = 1 << 20  # small enough to stay in the processor's cache while it is worked on

_SUB_BYTE = frozenset(
    d for d in ir.DataType if d.name.startswith(("INT4", "UINT4", "INT2", "UINT2", "FLOAT4", "FLOAT6"))
)


class StreamedTensor(ir.ExternalTensor):
    """A tensor whose elements come in chunks.  To onnx_ir it is external data, so it is serialised as a reference.

    ``slot`` is the number by which the file writer finds the tensor again (see ``mpdeploy.graph.wire``).
    """

    slot: int = -1

    def __init__(self, name: str, dtype: ir.DataType, shape: ir.Shape) -> None:
        super().__init__(SLOT, None, None, dtype, shape=ir.Shape(shape), name=name)

    @property
    def offset(self) -> int | None:
        """The slot: where the file writer finds the payload."""
        return self.slot

    @property
    def length(self) -> int | None:
        """The payload's size in bytes."""
        return self.nbytes

    def chunks(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the elements in order as one-dimensional arrays of about ``CHUNK_BYTES`` each."""
        raise NotImplementedError

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the whole tensor as a new array."""
        parts = list(self.chunks())
        flat = np.concatenate(parts) if parts else np.empty(0, self.dtype.numpy())
        return flat.reshape(self.shape.numpy())

    def __array__(self, dtype: Any = None) -> np.ndarray[Any, Any]:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def raw_chunks(self) -> Iterator[memoryview]:
        """Yield the payload in order, little-endian, as it lies in a file."""
        for chunk in self.chunks():
            yield chunk.view(np.uint8).data

    def tobytes(self) -> bytes:
        """Return the whole payload, little-endian."""
        return b"".join(self.raw_chunks())

    def tofile(self, file: Any) -> None:
        """Write the payload to a binary stream, chunk by chunk."""
        for chunk in self.raw_chunks():
            file.write(chunk)


class FileTensor(StreamedTensor):
    """A tensor whose payload lies at ``start`` in the file ``source``.

    Raises ``ModelError`` if the payload's size is not what its type and shape ask for, ``UsageError`` if the file
    ends before the payload does.
    """

    def __init__(
        self, source: Path, start: int, nbytes: int | None, name: str, dtype: ir.DataType, shape: ir.Shape
    ) -> None:
        super().__init__(name, dtype, shape)
        self.source, self.start = source, start
        if nbytes is not None and nbytes != self.nbytes:
            raise ModelError(
                f"tensor '{name}' has {nbytes} bytes of data, its type and shape ask for {self.nbytes}",
                where=str(source),
            )
        facts = source.stat()
        self._version = _version(facts)
        if start < 0 or start + self.nbytes > facts.st_size:
            raise UsageError(
                f"the data of tensor '{name}' reaches past the end of the file",
                where=str(source),
                remedy="the file is truncated or belongs to another model",
            )

    @contextlib.contextmanager
    def _opened(self) -> Iterator[io.FileIO]:
        """Open the file where the payload begins, if it is still the file that was looked at."""
        with self.source.open("rb", buffering=0) as stream:
            if _version(os.fstat(stream.fileno())) != self._version:
                raise UsageError(
                    f"the file that holds tensor '{self.name}' has changed since the model was loaded",
                    where=str(self.source),
                    remedy="load the model again",
                )
            stream.seek(self.start)
            yield stream

    def chunks(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the elements as they are read from the file."""
        if self.dtype in _SUB_BYTE:
            raise ModelError(f"tensor '{self.name}' of type {self.dtype.name} cannot be read in chunks")
        kind = self.dtype.numpy().newbyteorder("<")
        per_chunk = max(1, CHUNK_BYTES // kind.itemsize)
        left = self.size
        with self._opened() as stream:
            while left:
                chunk = np.fromfile(stream, dtype=kind, count=min(left, per_chunk))
                if not chunk.size:
                    raise UsageError(f"tensor '{self.name}' could not be read whole", where=str(self.source))
                left -= chunk.size
                yield chunk

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the whole tensor as a new array (packed 4- and 2-bit types unpacked)."""
        if self.dtype in _SUB_BYTE:
            packed = ir.ExternalTensor(
                self.source.name,
                self.start,
                self.nbytes,
                self.dtype,
                shape=self.shape,
                name=self.name,
                base_dir=self.source.parent,
            )
            with self._opened():
                return np.array(packed.numpy())
        return super().numpy()

    def raw_chunks(self) -> Iterator[memoryview]:
        """Yield the payload as it lies in the file, whatever its type."""
        left = self.nbytes
        with self._opened() as stream:
            while left:
                piece = stream.read(min(left, CHUNK_BYTES))
                if not piece:
                    raise UsageError(f"tensor '{self.name}' could not be read whole", where=str(self.source))
                left -= len(piece)
                yield memoryview(piece)


def _version(facts: os.stat_result) -> tuple[int, int, int]:
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


class HeldTensor(StreamedTensor):
    """A tensor in memory that is written as if it were streamed."""

    def __init__(self, held: ir.TensorProtocol) -> None:
        super().__init__(held.name or "", held.dtype, ir.Shape(held.shape.numpy()))
        self._held = held

    def chunks(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield all elements at once."""
        yield np.ascontiguousarray(self._held.numpy()).reshape(-1)

    def raw_chunks(self) -> Iterator[memoryview]:
        """Yield the whole payload, packed where its type is."""
        yield memoryview(self._held.tobytes())


def resolve_external(folder: Path, location: str, tensor: str) -> Path:
    """Return the path of an external data file, which must be an ordinary file inside ``folder``.

    Raises ``UsageError`` for an absolute path, a path or link that leaves the folder, or a missing file.
    """
    home = folder.resolve()
    path = home / location
    if Path(location).is_absolute() or not path.resolve().is_relative_to(home):
        raise UsageError(
            f"tensor '{tensor}' wants data from outside the model's folder: {location!r}",
            where=str(folder),
            remedy="such a file is not trusted; export the model again with its data beside it",
        )
    if not path.is_file():
        raise UsageError(
            f"the external data file {location!r} of tensor '{tensor}' is missing",
            where=str(folder),
            remedy="put it beside the model",
        )
    return path.resolve()


class RoundedTensor(StreamedTensor):
    """Another tensor in a lower format, rounded to nearest even chunk by chunk as it is read."""

    def __init__(self, exact: ir.TensorProtocol, target: Format, dtype: ir.DataType, name: str) -> None:
        super().__init__(name, dtype, ir.Shape(exact.shape.numpy()))
        self.exact, self.target = exact, target

    def chunks(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the rounded elements."""
        if isinstance(self.exact, StreamedTensor):
            for chunk in self.exact.chunks():
                yield cast(chunk, self.target)
        else:
            yield cast(np.asarray(self.exact.numpy()).reshape(-1), self.target)


class WidenedTensor(StreamedTensor):
    """A half-precision tensor as float32, chunk by chunk as it is read."""

    def __init__(self, half: StreamedTensor) -> None:
        super().__init__(half.name or "", ir.DataType.FLOAT, ir.Shape(half.shape.numpy()))
        self.half = half

    def chunks(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the elements, which lose nothing."""
        for chunk in self.half.chunks():
            yield chunk.astype(np.float32)
