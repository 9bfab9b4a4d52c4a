"""Large tensors cut out of, and spliced into, the bytes of an ONNX file without parsing them.

An ONNX file is one protobuf message; its weights are length-delimited fields deep inside.  ``strip`` copies the
message without the payload of its large tensors and leaves a reference to the place in the file, in the form
that ONNX itself uses for external data.  ``inflate`` is the way back: it yields the bytes of the full message,
asking for each payload only when its turn has come.  So a model's weights never need to be in memory.

Wire format: https://protobuf.dev/programming-guides/encoding/; field numbers: onnx.proto.
"""

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

SLOT = "mpdeploy:slot"  # the `location` of a tensor whose payload `inflate` is to fetch; `offset` is its number

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14
_EXTERNAL = 1
_KEY, _VALUE = 1, 2

Buffer = bytes | mmap.mmap


class _Message(Enum):
    """The messages on the way from a model to its tensors."""

    MODEL = "ModelProto"
    FUNCTION = "FunctionProto"
    GRAPH = "GraphProto"
    NODE = "NodeProto"
    ATTRIBUTE = "AttributeProto"
    TENSOR = "TensorProto"


_CHILDREN: dict[_Message, dict[int, _Message]] = {
    _Message.MODEL: {7: _Message.GRAPH, 25: _Message.FUNCTION},
    _Message.FUNCTION: {7: _Message.NODE},
    _Message.GRAPH: {1: _Message.NODE, 5: _Message.TENSOR},
    _Message.NODE: {5: _Message.ATTRIBUTE},
    _Message.ATTRIBUTE: {5: _Message.TENSOR, 6: _Message.GRAPH, 10: _Message.TENSOR, 11: _Message.GRAPH},
    _Message.TENSOR: {},
}


class WireError(ValueError):
    """The bytes are not a protobuf message: truncated, or something else altogether."""


@dataclass(frozen=True)
class _Field:
    number: int
    wire: int
    start: int  # of the field, its key included
    body: int  # of the payload (for length-delimited fields)
    end: int


def strip(buffer: Buffer, location: str, threshold: int) -> bytes:
    """Return the ModelProto in ``buffer`` with each raw payload of ``threshold`` bytes or more left where it is.

    Such a tensor becomes external data: ``location`` as given, ``offset`` and ``length`` in the buffer.
    Raises ``WireError`` if the buffer is not a protobuf message.
    """
    return b"".join(_strip(buffer, 0, len(buffer), _Message.MODEL, location.encode(), threshold))


def inflate(skeleton: bytes, size_of: Callable[[int], int]) -> Iterator[bytes | int]:
    """Yield the pieces of the full ModelProto: bytes to write as they are, or the number of a slot to fill.

    ``size_of`` gives the payload size of a slot in bytes; exactly so many must be written in its place.
    """
    _, pieces = _inflate(skeleton, 0, len(skeleton), _Message.MODEL, size_of)
    yield from pieces


def _strip(buffer: Buffer, start: int, end: int, message: _Message, location: bytes, threshold: int) -> list[bytes]:
    children = _CHILDREN[message]
    pieces: list[bytes] = []
    copied = start
    reference = b""
    for field in _fields(buffer, start, end):
        size = field.end - field.body
        if field.wire != _LENGTH or size < threshold:
            continue
        if message is _Message.TENSOR and field.number == _RAW_DATA:
            # It comes last, where it overrules what the tensor says of its location.
            replacement, reference = b"", _reference(location, field.body, size)
        elif field.number in children:
            child = b"".join(_strip(buffer, field.body, field.end, children[field.number], location, threshold))
            replacement = _length_delimited(field.number, child)
        else:
            continue
        pieces += [buffer[copied : field.start], replacement]
        copied = field.end
    return [*pieces, buffer[copied:end], reference]


def _inflate(
    data: bytes, start: int, end: int, message: _Message, size_of: Callable[[int], int]
) -> tuple[int, list[bytes | int]]:
    marker = SLOT.encode()
    if message is _Message.TENSOR:
        return _inflate_tensor(data, start, end, size_of)
    children = _CHILDREN[message]
    pieces: list[bytes | int] = []
    total, copied = 0, start
    for field in _fields(data, start, end):
        if field.wire != _LENGTH or field.number not in children:
            continue
        if data.find(marker, field.body, field.end) < 0:
            continue
        size, inner = _inflate(data, field.body, field.end, children[field.number], size_of)
        head = data[copied : field.start] + _key(field.number, _LENGTH) + _varint(size)
        pieces += [head, *inner]
        total += len(head) + size
        copied = field.end
    rest = data[copied:end]
    return total + len(rest), [*pieces, rest]


def _inflate_tensor(data: bytes, start: int, end: int, size_of: Callable[[int], int]) -> tuple[int, list[bytes | int]]:
    entries: dict[bytes, bytes] = {}
    kept = b""
    for field in _fields(data, start, end):
        if field.number == _EXTERNAL_DATA:
            key, value = _entry(data, field.body, field.end)
            entries[key] = value
        elif field.number != _DATA_LOCATION:
            kept += data[field.start : field.end]
    if entries.get(b"location") != SLOT.encode():  # the marker stood elsewhere, in a name or among the weights
        return end - start, [data[start:end]]
    slot = int(entries[b"offset"])
    size = size_of(slot)
    head = kept + _key(_RAW_DATA, _LENGTH) + _varint(size)
    return len(head) + size, [head, slot]


def _entry(data: bytes, start: int, end: int) -> tuple[bytes, bytes]:
    parts = {field.number: data[field.body : field.end] for field in _fields(data, start, end)}
    return parts.get(_KEY, b""), parts.get(_VALUE, b"")


def _reference(location: bytes, offset: int, length: int) -> bytes:
    entries = {b"location": location, b"offset": b"%d" % offset, b"length": b"%d" % length}
    body = b"".join(
        _length_delimited(_EXTERNAL_DATA, _length_delimited(_KEY, key) + _length_delimited(_VALUE, value))
        for key, value in entries.items()
    )
    return body + _key(_DATA_LOCATION, _VARINT) + _varint(_EXTERNAL)


def _fields(data: Buffer, start: int, end: int) -> Iterator[_Field]:
    at = start
    while at < end:
        begin = at
        key, at = _read_varint(data, at, end)
        wire = key & 7
        if wire == _LENGTH:
            size, at = _read_varint(data, at, end)
            body, at = at, at + size
        elif wire == _VARINT:
            body = at
            _, at = _read_varint(data, at, end)
        elif wire in (_FIXED32, _FIXED64):
            body, at = at, at + (8 if wire == _FIXED64 else 4)
        else:
            raise WireError(f"byte {begin}: unknown wire type {wire}")
        if at > end or key >> 3 == 0:
            raise WireError(f"byte {begin}: a field reaches past the end of its message")
        yield _Field(key >> 3, wire, begin, body, at)


def _read_varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            break
    raise WireError(f"byte {at}: a truncated or oversized integer")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _length_delimited(number: int, body: bytes) -> bytes:
    return _key(number, _LENGTH) + _varint(len(body)) + body
