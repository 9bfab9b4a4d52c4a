"""ONNX files in and out of memory.

``load`` reads everything but the large tensors, which stay in their file until they are written (see
``mpdeploy.graph.wire``), checks the model, and brings it into one form: local functions inlined, sparse
initializers dense, every node named.  ``save`` writes a model whole or not at all.
"""

import hashlib
import math
import mmap
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, cast

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from mpdeploy.errors import ModelError, UsageError
from mpdeploy.files import atomic_path, publish, readable_file, scratch_path
from mpdeploy.graph import canonical, check, types, wire
from mpdeploy.graph.bounds import check_bounds
from mpdeploy.graph.order import sort_nodes
from mpdeploy.graph.scope import all_graphs, all_nodes
from mpdeploy.graph.tensors import FileTensor, HeldTensor, StreamedTensor, resolve_external

IN_MEMORY_BYTES = 1024  # tensors below this size are parsed with the graph
SINGLE_FILE_BYTES = 2**31 - 2**20  # protobuf refuses messages of 2 GiB and more

SOURCE = "mpdeploy.source"  # where a model keeps its ``Source``
_TORCH = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".pt2", ".ts")
_DATA_NAME = r"\.[0-9a-f]{12}\.data"  # behind a model's name: a hash of the content

Item = TypeVar("Item")


@dataclass(frozen=True)
class Source:
    """What the file said of itself, for the way back: declared inputs and outputs, where its weights lay.

    ``mistaken`` are outputs whose declared shape turned out to be none that the model gives; another stands for it.
    ``unsorted``: its nodes did not stand in the order in which they run.
    """

    path: Path
    external: bool
    inputs: dict[str, onnx.ValueInfoProto]
    outputs: dict[str, onnx.ValueInfoProto]
    value_infos: frozenset[str]
    mistaken: frozenset[str] = frozenset()
    unsorted: bool = False


def load(path: Path) -> ir.Model:
    """Return the model in ``path``, checked, typed as far as can be known, its large tensors still in the file.

    Raises ``UsageError`` if the file is missing, empty, truncated, not ONNX, or points outside its folder;
    ``ModelError`` if the model is invalid.
    """
    proto = read_skeleton(path)
    with check.invalid_model(str(path)):
        check_bounds(proto)
        source = replace(_source(proto, path), unsorted=sort_nodes(proto))
        _embed_small(proto, path)
        proto = canonical.canonical_proto(proto)
        check.check_structure(proto, str(path))
        proto = check.infer_types(proto, str(path))
        model = ir.from_proto(proto)
    check.check_subgraphs(model, str(path))
    _attach_files(model, path)
    canonical.name_nodes(model)
    types.infer(model)
    model.meta[SOURCE] = source
    return model


def _source(proto: onnx.ModelProto, path: Path) -> Source:
    return Source(
        path=path,
        external=_uses_external_data(proto, path),
        inputs={v.name: _copied(v) for v in proto.graph.input},
        outputs={v.name: _copied(v) for v in proto.graph.output},
        value_infos=frozenset(v.name for v in proto.graph.value_info),
    )


def source_of(model: ir.Model) -> Source:
    """Return what is known of the file that a model was loaded from."""
    source: Source = model.meta[SOURCE]
    return source


def read_skeleton(path: Path) -> onnx.ModelProto:
    """Return the file's ModelProto with its large tensors replaced by references into the file."""
    readable_file(path, "ONNX file")
    proto = onnx.ModelProto()
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            proto.ParseFromString(wire.strip(buffer, path.name, IN_MEMORY_BYTES))
    except (wire.WireError, DecodeError) as error:
        raise UsageError(
            f"not an ONNX model, or a truncated one ({error})", where=str(path), remedy=_remedy_for(path)
        ) from error
    except RecursionError as error:
        raise ModelError("its graphs are nested too deeply to be read", where=str(path)) from error
    if not proto.ir_version or not proto.HasField("graph"):
        raise UsageError("not an ONNX model", where=str(path), remedy="give a file written by an ONNX exporter")
    return proto


def _remedy_for(path: Path) -> str:
    """What to do with a file that is no ONNX model, by what it looks like."""
    with path.open("rb") as stream:
        first = stream.read(2)
    if path.suffix == ".npz":
        return "this looks like data: give it with --data"
    if first == b"PK" or first[:1] == b"\x80" or path.suffix.lower() in _TORCH:
        return f"this looks like a torch model: 'mpdeploy export {path}' makes ONNX of it"
    return "export or download it again"


def save(model: ir.Model, path: Path) -> None:
    """Write the model to ``path``; its inputs and outputs keep the shapes that their source declared.

    Weights go into the same file, or, where the source had them outside or they exceed protobuf's 2 GiB, into
    a data file beside it whose name holds a hash of its content: an older model beside it stays valid until
    the very moment it is replaced.  Raises ``UsageError`` if the place cannot be written.
    """
    skeleton, tensors = serialised(model)
    total = len(skeleton) + sum(t.nbytes for t in tensors)
    before = _own_data_file(path)
    if total < SINGLE_FILE_BYTES and not source_of(model).external:
        _write_single(path, skeleton, tensors)
        after = None
    else:
        after = _write_external(path, skeleton, tensors)
    if before is not None and before != after:
        before.unlink(missing_ok=True)


def _write_single(path: Path, skeleton: bytes, tensors: list[StreamedTensor]) -> None:
    with atomic_path(path) as scratch, scratch.open("wb", buffering=1 << 20) as stream:
        pieces = wire.inflate(skeleton, lambda slot: tensors[slot].nbytes)
        for chunk in _ahead(chunk for piece in pieces for chunk in _chunks(piece, tensors)):
            stream.write(chunk)


def _chunks(piece: bytes | int, tensors: list[StreamedTensor]) -> Iterable[bytes | memoryview]:
    return [piece] if isinstance(piece, bytes) else tensors[piece].raw_chunks()


def _write_external(path: Path, skeleton: bytes, tensors: list[StreamedTensor]) -> Path:
    offsets, digest = _offsets(tensors), hashlib.sha256()
    with scratch_path(path.with_name(path.name + ".data")) as scratch:
        with scratch.open("wb", buffering=1 << 20) as stream:
            for slot, chunk in _ahead((slot, chunk) for slot, t in enumerate(tensors) for chunk in t.raw_chunks()):
                stream.write(bytes(max(0, offsets[slot] - stream.tell())))
                digest.update(chunk)
                stream.write(chunk)
        data = path.with_name(f"{path.name}.{digest.hexdigest()[:12]}.data")
        known = data.exists()
        publish(scratch, data)
    try:
        proto = onnx.ModelProto.FromString(skeleton)
        for tensor_proto in _external_tensors(proto):
            slot = int(_external_info(tensor_proto)["offset"])
            del tensor_proto.external_data[:]
            for key, value in (("location", data.name), ("offset", offsets[slot]), ("length", tensors[slot].nbytes)):
                tensor_proto.external_data.add(key=key, value=str(value))
        with atomic_path(path) as model_scratch:
            model_scratch.write_bytes(proto.SerializeToString(deterministic=True))
    except BaseException:
        if not known:
            data.unlink(missing_ok=True)
        raise
    return data


def _offsets(tensors: list[StreamedTensor]) -> list[int]:
    """Where each tensor begins in a data file: aligned, so that runtimes can map it."""
    offsets, end = [], 0
    for tensor in tensors:
        offsets.append(end + -end % 64)
        end = offsets[-1] + tensor.nbytes
    return offsets


def _ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items while the next one is already being made in a thread: rounding runs beside writing."""
    iterator, end = iter(items), object()
    with ThreadPoolExecutor(1) as pool:
        upcoming: Future[Item | object] = pool.submit(next, iterator, end)
        while (item := upcoming.result()) is not end:
            upcoming = pool.submit(next, iterator, end)
            yield cast(Item, item)


def serialised(model: ir.Model) -> tuple[bytes, list[StreamedTensor]]:
    """Return the model's ModelProto with a numbered slot for each streamed tensor, and the tensors by slot.

    Tensors too small for that stand in the ModelProto, as ``load`` reads them.
    """
    _settle(model)
    tensors = _assign_slots(model)
    source = source_of(model)
    with check.invalid_model(str(source.path)):
        proto = ir.to_proto(model)
    for declared, values in ((source.inputs, proto.graph.input), (source.outputs, proto.graph.output)):
        for value in values:
            if value.name in declared and value.type.HasField("tensor_type"):
                kind = value.type.tensor_type.elem_type
                value.CopyFrom(declared[value.name])
                value.type.tensor_type.elem_type = kind
    kept = [v for v in proto.graph.value_info if v.name in source.value_infos]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(kept)
    content: bytes = proto.SerializeToString(deterministic=True)
    return content, tensors


def data_files_of(path: Path) -> tuple[Path, ...]:
    """Return the data files in the folder of ``path`` that are named as those that ``save`` writes for it."""
    pattern = re.compile(re.escape(path.name) + _DATA_NAME)
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    return tuple(sorted(file for file in beside if pattern.fullmatch(file.name)))


def _own_data_file(path: Path) -> Path | None:
    """The data file that an earlier ``save`` to ``path`` wrote, if the model there still points to it."""
    if not path.is_file():
        return None
    try:
        proto = read_skeleton(path)
    except UsageError:
        return None
    for tensor in _external_tensors(proto):
        location = _external_info(tensor).get("location", "")
        if re.fullmatch(re.escape(path.name) + _DATA_NAME, location):
            return path.with_name(location)
    return None


def _assign_slots(model: ir.Model) -> list[StreamedTensor]:
    tensors: list[StreamedTensor] = []
    for tensor in _model_tensors(model):
        if isinstance(tensor, StreamedTensor):
            tensor.slot = len(tensors)
            tensors.append(tensor)
    return tensors


def _settle(model: ir.Model) -> None:
    """Let large tensors be streamed and small ones not, wherever they come from: as ``load`` would read them."""

    def settled(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if tensor.dtype is ir.DataType.STRING or (tensor.nbytes >= IN_MEMORY_BYTES) is isinstance(
            tensor, StreamedTensor
        ):
            return tensor
        if isinstance(tensor, StreamedTensor):
            return ir.Tensor(tensor.numpy(), tensor.dtype, shape=tensor.shape, name=tensor.name)
        return HeldTensor(tensor)

    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = settled(value.const_value)
    for node in all_nodes(model):
        for name, attribute in list(node.attributes.items()):
            if attribute.type is ir.AttributeType.TENSOR:
                tensor = attribute.as_tensor()
                if (other := settled(tensor)) is not tensor:
                    node.attributes[name] = ir.AttrTensor(name, other)


def _model_tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for node in all_nodes(model):
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.TENSOR:
                yield attribute.as_tensor()


def _embed_small(proto: onnx.ModelProto, path: Path) -> None:
    """Read small external tensors: they may decide shapes, which ONNX infers from data in the model alone.

    Large ones are held against their files here, before a shape that they claim is worked with.
    """
    for tensor in _external_tensors(proto):
        info, dtype = _external_info(tensor), ir.DataType(tensor.data_type)
        length = int(info["length"]) if "length" in info else None
        place = info.get("location", ""), int(info.get("offset", 0)), length
        if place[1] < 0:
            raise ModelError(
                f"the offset of tensor '{tensor.name}' must be non-negative, got {place[1]}", where=str(path)
            )
        held = _file_tensor(path, *place, tensor.name, dtype, ir.Shape(tensor.dims))
        if math.prod(tensor.dims) * dtype.bitwidth >= 8 * IN_MEMORY_BYTES:
            continue
        tensor.raw_data = held.tobytes()
        tensor.ClearField("external_data")
        tensor.ClearField("data_location")


def _file_tensor(
    path: Path, location: str, start: int, nbytes: int | None, name: str, dtype: ir.DataType, shape: ir.Shape
) -> FileTensor:
    home = path if location == path.name else resolve_external(path.parent, location, name)
    return FileTensor(home, start, nbytes, name, dtype, shape)


def _attach_files(model: ir.Model, path: Path) -> None:
    """Let every reference left by ``read_skeleton``, and all external data, be read from its file on demand."""

    def attached(tensor: ir.ExternalTensor) -> FileTensor:
        place = str(tensor.location), tensor.offset or 0, tensor.length
        return _file_tensor(path, *place, tensor.name or "", tensor.dtype, ir.Shape(tensor.shape))

    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = attached(value.const_value)
    for node in all_nodes(model):
        for name, attribute in list(node.attributes.items()):
            if attribute.type is ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                node.attributes[name] = ir.AttrTensor(name, attached(attribute.value))


def _uses_external_data(proto: onnx.ModelProto, path: Path) -> bool:
    return any(_external_info(t).get("location") != path.name for t in _external_tensors(proto))


def _external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for tensor in canonical.proto_tensors(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor


def _external_info(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _copied(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    return copy


def size_of(path: Path) -> int:
    """Return the bytes that a model takes on disk, its external data included."""
    return sum(file.stat().st_size for file in files_of(path))


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the model's own file and those with its external data, whatever the size of the tensors in them."""
    outside = {_external_info(t).get("location", "") for t in _external_tensors(read_skeleton(path))} - {path.name}
    return (path, *(path.parent / name for name in sorted(outside)))
