"""Weights cut out of a model's bytes, and put back, on any ModelProto."""

import contextlib

import onnx
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto

from mpdeploy.graph import wire

# Text that must not be mistaken for a reference, among ordinary names.
names = st.sampled_from(["", "w", "a name that is longer than the threshold of the test", wire.SLOT])
payloads = st.one_of(st.binary(max_size=80), st.just(wire.SLOT.encode() * 4))


@st.composite
def tensors(draw):
    tensor = TensorProto(
        name=draw(names), dims=draw(st.lists(st.integers(0, 2**40), max_size=3)), data_type=1, raw_data=draw(payloads)
    )
    if draw(st.booleans()):  # as the onnx library leaves it after it has loaded external data
        tensor.data_location = TensorProto.DEFAULT
    return tensor


@st.composite
def attributes(draw, depth):
    kinds = ["i", "s", "floats", "t", "tensors"] + (["g", "graphs"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    attribute = AttributeProto(name=draw(names))
    if kind == "i":
        attribute.i = draw(st.integers(-(2**63), 2**63 - 1))
    elif kind == "s":
        attribute.s = draw(payloads)
    elif kind == "floats":
        attribute.floats.extend(draw(st.lists(st.floats(width=32, allow_nan=False), max_size=20)))
    elif kind == "t":
        attribute.t.CopyFrom(draw(tensors()))
    elif kind == "tensors":
        attribute.tensors.extend(draw(st.lists(tensors(), max_size=3)))
    elif kind == "g":
        attribute.g.CopyFrom(draw(graphs(depth - 1)))
    else:
        attribute.graphs.extend(draw(st.lists(graphs(depth - 1), max_size=2)))
    return attribute


@st.composite
def nodes(draw, depth):
    return onnx.NodeProto(
        op_type=draw(names),
        input=draw(st.lists(names, max_size=2)),
        attribute=draw(st.lists(attributes(depth), max_size=3)),
    )


@st.composite
def graphs(draw, depth):
    return onnx.GraphProto(
        name=draw(names),
        node=draw(st.lists(nodes(depth), max_size=3)),
        initializer=draw(st.lists(tensors(), max_size=3)),
        doc_string=draw(names),
    )


@st.composite
def models(draw):
    functions = [
        onnx.FunctionProto(name="f", node=draw(st.lists(nodes(1), max_size=2))) for _ in range(draw(st.integers(0, 2)))
    ]
    return onnx.ModelProto(ir_version=10, graph=draw(graphs(2)), functions=functions, doc_string=draw(names))


def tensors_in(message: Message):
    """Every TensorProto anywhere inside, found without knowing ONNX."""
    if isinstance(message, TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for item in value if field.is_repeated else [value]:
                yield from tensors_in(item)


def entries(tensor):
    return {entry.key: entry.value for entry in tensor.external_data}


@given(models(), st.integers(1, 60))
def test_strip_refers_to_every_large_payload_and_changes_nothing_else(model, threshold):
    content = model.SerializeToString()
    stripped = onnx.ModelProto.FromString(wire.strip(content, "model.onnx", threshold))
    before, after = list(tensors_in(model)), list(tensors_in(stripped))
    assert len(before) == len(after)
    for old, new in zip(before, after, strict=True):
        large = len(old.raw_data) >= threshold
        assert (new.data_location == TensorProto.EXTERNAL) == large
        if large:
            found = entries(new)
            assert found["location"] == "model.onnx"
            start, length = int(found["offset"]), int(found["length"])
            assert content[start : start + length] == old.raw_data
            del new.external_data[:]
            new.raw_data = old.raw_data
        new.ClearField("data_location")
        old.ClearField("data_location")
    assert stripped == model


@given(models(), st.integers(1, 60))
def test_inflate_is_the_way_back(model, threshold):
    skeleton = onnx.ModelProto.FromString(model.SerializeToString())
    for tensor in tensors_in(model):
        if len(tensor.raw_data) >= threshold:
            tensor.ClearField("data_location")
    data = []
    for tensor in tensors_in(skeleton):
        if len(tensor.raw_data) >= threshold:
            for key, value in (("location", wire.SLOT), ("offset", len(data)), ("length", len(tensor.raw_data))):
                tensor.external_data.add(key=key, value=str(value))
            tensor.data_location = TensorProto.EXTERNAL
            data.append(tensor.raw_data)
            tensor.ClearField("raw_data")
    pieces = list(wire.inflate(skeleton.SerializeToString(), lambda slot: len(data[slot])))
    content = b"".join(piece if isinstance(piece, bytes) else data[piece] for piece in pieces)
    assert sorted(piece for piece in pieces if isinstance(piece, int)) == list(range(len(data)))
    assert onnx.ModelProto.FromString(content) == model


@given(st.binary(max_size=60))
def test_other_bytes_give_bytes_or_a_wire_error(content):
    with contextlib.suppress(wire.WireError):
        assert isinstance(wire.strip(content, "file", 8), bytes)


@pytest.mark.parametrize(
    "content",
    [
        b"\x3a\x7f",  # a graph that says it is longer than the file
        b"\xff" * 12,  # a number that never ends
        b"\x0b",  # groups are no part of ONNX
        b"\x02\x00",  # field number 0
    ],
)
def test_what_is_no_message_is_refused(content):
    with pytest.raises(wire.WireError):
        wire.strip(content, "file", 8)


def test_unknown_fields_survive():
    known = onnx.ModelProto(ir_version=10).SerializeToString()
    unknown = b"\xc2\x3e\x03abc" + b"\xc9\x3e" + bytes(8) + b"\xcd\x3e" + bytes(4)
    assert wire.strip(known + unknown, "file", 1) == known + unknown
