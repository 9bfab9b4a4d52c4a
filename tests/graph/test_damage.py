"""Files that are damaged in any way: one line from our own errors, whatever breaks in the libraries below."""

import contextlib

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from mpdeploy.conversion.api import convert
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.graph import io

# A small model with something of everything: a branch, a function, a stripped weight, names, metadata.
TEXT = """<ir_version: 10, opset_import: ["" : 17, "local" : 1], metadata_props: ["who": "me"]>
small (float[N,4] x, bool c) => (float[N,4] y) <float[4] bias = {1.0,2.0,3.0,4.0}> {
    scaled = local.scale(x)
    picked = If (c) <
        then_branch = yes () => (float[N,4] a) { a = Add(scaled, bias) },
        else_branch = no () => (float[N,4] b) {
            k = Constant<value = float[4] {9.0, 8.0, 7.0, 6.0}>()  b = Mul(scaled, k)
        }>
    highest = ReduceMax<keepdims = 0>(big)
    moved = Sub(picked, highest)
    y = Softmax<axis = -1>(moved)
}
<domain: "local", opset_import: ["" : 17]>
scale (v) => (w) { two = Constant<value = float {2.0}>() w = Mul(v, two) }
"""


def whole() -> bytes:
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(300, np.float32), "big"))
    return model.SerializeToString()


CONTENT = whole()


def faults(path):
    """What loading the file raises, if anything; all but our own errors about input fails the test."""
    try:
        io.load(path)
    except (UsageError, ModelError) as error:
        return error
    return None


def test_a_file_cut_off_anywhere(tmp_path):
    path = tmp_path / "model.onnx"
    # Where a prefix ends between two fields of the model it is a model again, only another one.
    complete, at = set(), 0
    for field in wire_fields():
        at += field
        complete.add(at)
    # Inside the large weight every length is like the next.
    start = CONTENT.index(bytes(np.ones(300, np.float32))) + 40
    lengths = [n for n in range(len(CONTENT)) if not start < n < start + 1100]
    for length in lengths:
        path.write_bytes(CONTENT[:length])
        error = faults(path)
        if length not in complete:
            assert isinstance(error, UsageError), length
            assert "\n" not in str(error)


def wire_fields():
    """Sizes of the top-level fields of the file."""
    from mpdeploy.graph import wire

    return [field.end - field.start for field in wire._fields(CONTENT, 0, len(CONTENT))]


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(CONTENT) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_bytes_changed_anywhere(tmp_path, changes):
    content = bytearray(CONTENT)
    for place, value in changes:
        content[place] = value
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    assert "\n" not in str(faults(path))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, len(CONTENT) - 1), st.integers(0, 7), st.sampled_from(["fp16", "bf16"]))
def test_what_loads_after_a_flipped_bit_converts_or_is_refused(tmp_path, place, bit, precision):
    content = bytearray(CONTENT)
    content[place] ^= 1 << bit
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with contextlib.suppress(UsageError, ModelError):
        convert(path, tmp_path / "low.onnx", precision=precision)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"this is no model", "not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "not an ONNX model"),
        (b"PK\x03\x04" + bytes(50), "not an ONNX model"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "not an ONNX model"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "not an ONNX model"),
    ],
)
def test_what_is_no_model(tmp_path, content, says):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        io.load(path)


def model_with(nodes, outputs=("y",), stored=(), opset=17, kinds=None):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 4])],
        [helper.make_tensor_value_info(name, (kinds or {}).get(name, 1), None) for name in outputs],
        list(stored),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def branch(*outputs):
    nodes = [helper.make_node("Neg", ["x"], [name]) for name in outputs]
    return helper.make_graph(nodes, "b", [], [helper.make_tensor_value_info(name, 1, None) for name in outputs])


def body(inputs, outputs):
    kinds = {"i": 7, "c": 9}
    nodes = [helper.make_node("Identity", ["c" if k == 0 else "x"], [name]) for k, name in enumerate(outputs)]
    infos = [[helper.make_tensor_value_info(n, kinds.get(n, 1), None) for n in names] for names in (inputs, outputs)]
    infos[1][0].type.tensor_type.elem_type = 9
    return helper.make_graph(nodes, "body", *infos)


def with_weight(**facts):
    return model_with([helper.make_node("Add", ["x", "w"], ["y"])], stored=[onnx.TensorProto(name="w", **facts)])


INVALID = {
    "unknown operator": model_with([helper.make_node("Reluu", ["x"], ["y"])]),
    "value from nowhere": model_with([helper.make_node("Relu", ["z"], ["y"])]),
    "output that nobody makes": model_with([helper.make_node("Relu", ["x"], ["z"])]),
    "two producers": model_with([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]),
    "cycle": model_with([helper.make_node("Add", ["x", "z"], ["y"]), helper.make_node("Neg", ["y"], ["z"])]),
    "missing attribute": model_with([helper.make_node("Cast", ["x"], ["y"])]),
    "two types on one operator": model_with(
        [helper.make_node("Cast", ["x"], ["d"], to=11), helper.make_node("Add", ["x", "d"], ["y"])]
    ),
    "data too short": with_weight(data_type=1, dims=[4], raw_data=b"1234"),
    "float data too short": with_weight(data_type=1, dims=[4], float_data=[1]),
    "data of no type": with_weight(data_type=93, dims=[1], raw_data=b"1234"),
    "branches of different widths": model_with(
        [helper.make_node("Cast", ["x"], ["flags"], to=9), helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
         helper.make_node("Cast", ["m"], ["c"], to=9),
         helper.make_node("If", ["c"], ["y", "y2"], then_branch=branch("a"), else_branch=branch("b", "b2"))],
        ("y", "y2"),
    ),
    "loop without its state": model_with(
        [helper.make_node("Loop", ["", ""], ["y"], body=body(["i", "c", "s"], ["c2", "s2"]))]
    ),
    "an output of no declared kind": model_with([helper.make_node("Relu", ["x"], ["y"])], kinds={"y": 10}),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_model_is_refused_with_exit_code_3(tmp_path, name):
    path = tmp_path / "model.onnx"
    path.write_bytes(INVALID[name].SerializeToString())
    with pytest.raises(ModelError) as caught:
        convert(path, tmp_path / "low.onnx", precision="fp16")
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.onnx"]


def test_text_that_is_not_utf8_is_refused_or_kept_out(tmp_path):
    for place in ("node", "value", "graph"):
        content = model_with([helper.make_node("Relu", ["x"], ["y"], name="ABCDE")]).SerializeToString()
        word = {"node": b"ABCDE", "value": b"y", "graph": b"\x01g"}[place]
        path = tmp_path / "model.onnx"
        path.write_bytes(content.replace(word, word[:-1] + b"\xff"))
        with pytest.raises((UsageError, ModelError)):
            convert(path, tmp_path / "low.onnx", precision="fp16")
