"""Raising the opset: the numbers stay what they were, or it is refused."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from mpdeploy.errors import ModelError
from mpdeploy.graph import io
from mpdeploy.graph.operators import opset_of
from mpdeploy.graph.opset import raised


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X = floats(2, 3, 4, 4)
NORM = {name: np.abs(floats(3, seed=i)) for i, name in enumerate("sbmv")}
RNN = {"W": floats(1, 16, 5), "R": floats(1, 16, 4, seed=1), "B": floats(1, 32, seed=2)}


def sizes(*values):
    return np.array(values, np.float32)


# Operators whose form, or default, changed between opsets: (opset, operator, attributes, further operands).
CHANGED = [
    (9, "Hardmax", {"axis": 3}, {}),
    (11, "Hardmax", {"axis": -1}, {}),
    (7, "Upsample", {"scales": [1.0, 1.0, 2.0, 2.0]}, {}),
    (9, "Upsample", {"mode": "linear"}, {"s": sizes(1, 1, 2, 3)}),
    (9, "Upsample", {"mode": "nearest"}, {"s": sizes(1, 1, 2.5, 1.25)}),
    (10, "Resize", {"mode": "linear"}, {"s": sizes(1, 1, 1.5, 3)}),
    (10, "Resize", {"mode": "nearest"}, {"s": sizes(1, 1, 2.5, 1.25)}),
    (10, "Resize", {"mode": "nearest"}, {"s": sizes(1, 1, 0.5, 0.75)}),
    (11, "Resize", {"mode": "linear"}, {"r": sizes(), "s": sizes(1, 1, 1.5, 3)}),
    (11, "Softmax", {"axis": 1}, {}),
    (11, "LogSoftmax", {"axis": 2}, {}),
    (10, "Pad", {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "value": 1.5}, {}),
    (10, "Clip", {"min": -0.5, "max": 0.5}, {}),
    (10, "Dropout", {"ratio": 0.3}, {}),
    (11, "ReduceSum", {"axes": [1, -1], "keepdims": 0}, {}),
    (17, "ReduceMean", {"axes": [1, -1], "keepdims": 0}, {}),
    (11, "Unsqueeze", {"axes": [0, 2]}, {}),
    (9, "Slice", {"starts": [1, 0], "ends": [3, 2], "axes": [2, 3]}, {}),
    (7, "BatchNormalization", {}, NORM),
    (7, "AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}, {}),
    (9, "Scatter", {"axis": 2}, {"i": np.zeros((2, 3, 1, 4), np.int64), "u": floats(2, 3, 1, 4)}),
    (11, "Conv", {"pads": [1, 1, 1, 1]}, {"w": floats(8, 3, 3, 3)}),
    (16, "GridSample", {"mode": "bilinear"}, {"g": floats(2, 5, 5, 2) / 3}),
    (7, "PRelu", {}, {"s": floats(3, 1, 1)}),
    (10, "Pad", {"pads": [0, 0, 1, 1, 0, 0, 1, 1], "mode": "edge", "value": 1.5}, {}),
    (9, "MeanVarianceNormalization", {}, {}),
    # A29: windows larger than what they slide over; ONNX Runtime divides otherwise from opset 19 on.
    (11, "AveragePool", {"kernel_shape": [5, 3], "strides": [3, 2], "count_include_pad": 1}, {}),
    (
        7,
        "AveragePool",
        {"kernel_shape": [7, 2], "strides": [3, 2], "pads": [0, 1, 2, 0], "count_include_pad": 1, "auto_pad": "NOTSET"},
        {},
    ),
]


@pytest.mark.parametrize("opset", [19, 22])
@pytest.mark.parametrize("known", [True, False], ids=["known sizes", "sizes of a run"])
@pytest.mark.parametrize("sides", [(1, 1), (1, 5), (4, 1), (2, 2), (6, 7)], ids=str)
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 1]], ids=str)
def test_averages_over_short_sides_stay(opset, known, sides, pads, tmp_path, run):
    """A29: whatever the sizes turn out to be in a run."""
    attributes = {"kernel_shape": [2, 3], "strides": [2, 3], "pads": pads, "count_include_pad": 1}
    model, feed = one_node(11, "AveragePool", attributes, {}), {"x": floats(2, 3, *sides)}
    declared = feed["x"].shape if known else ("N", 3, "H", "W")
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", 1, declared))
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    before.write_bytes(model.SerializeToString())
    io.save(raised(io.load(before), opset), after)
    np.testing.assert_allclose(run(after, feed)[0], run(before, feed)[0], rtol=1e-6, strict=True)


def one_node(opset, op, attributes, operands):
    node = helper.make_node(op, ["x", *operands], ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", 1, X.shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(array, name) for name, array in operands.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def inside_a_branch(model):
    """The same node once more, inside an If: older converters look into no subgraph."""
    node = model.graph.node[0]
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        inner.output[0] = name
        branches[name] = helper.make_graph([inner], name, [], [helper.make_tensor_value_info(name, 1, None)])
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("If", ["flag"], ["y"], **branches))
    model.graph.input.append(helper.make_tensor_value_info("flag", 9, []))
    return model


@pytest.mark.parametrize("place", ["main graph", "branch"])
@pytest.mark.parametrize("case", CHANGED, ids=lambda c: f"{c[1]}-{c[0]}-{'-'.join(map(str, c[2].values()))}")
def test_numbers_stay(case, place, tmp_path, run):
    model, feed = one_node(*case), {"x": X}
    if place == "branch":
        model, feed = inside_a_branch(model), {"x": X, "flag": np.array(True)}
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    before.write_bytes(model.SerializeToString())
    io.save(raised(io.load(before), 22), after)
    assert onnx.load(after).opset_import[0].version == 22
    wanted = run(before, feed)[0]
    np.testing.assert_allclose(run(after, feed)[0], wanted, rtol=1e-6, atol=1e-6, strict=True)


def test_recurrences_and_sequences_of_operators(tmp_path, run):
    nodes = [
        helper.make_node("LSTM", ["x", *RNN], ["all", "last"], hidden_size=4),
        helper.make_node("Squeeze", ["last"], ["flat"], axes=[0]),
        helper.make_node("Split", ["flat"], ["a", "b"], axis=1),
        helper.make_node("ReduceL2", ["a"], ["norm"], axes=[1]),
        helper.make_node("Div", ["b", "norm"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [6, 2, 5])],
        [helper.make_tensor_value_info("y", 1, [2, 2])],
        [numpy_helper.from_array(array, name) for name, array in RNN.items()],
    )
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4), before)
    higher = raised(io.load(before), 22)
    io.save(higher, after)
    feed = {"x": floats(6, 2, 5)}
    np.testing.assert_allclose(run(after, feed)[0], run(before, feed)[0], rtol=1e-6)
    assert (opset_of(higher, ""), higher.ir_version) == (22, 10)


def test_weights_are_still_streamed_and_facts_kept(sample, tmp_path, run):
    model, feed = sample
    model.producer_name, model.doc_string = "an exporter", "a text"
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    before.write_bytes(model.SerializeToString())
    higher = raised(io.load(before), 22)
    io.save(higher, after)
    for found, wanted in zip(run(after, feed), run(before, feed), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    saved = onnx.load(after)
    assert (saved.producer_name, saved.doc_string) == ("an exporter", "a text")
    assert saved.metadata_props == model.metadata_props
    assert saved.graph.input == model.graph.input


def test_a_lower_or_equal_opset_changes_nothing(sample_of, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(sample_of("convolution")[0].SerializeToString())
    model = io.load(path)
    assert raised(model, 17) is model
    assert raised(model, 11) is model


def test_the_ir_version_rises_only_if_it_must(sample_of, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(sample_of("convolution")[0].SerializeToString())
    model = io.load(path)
    assert raised(model, 18).ir_version == 8
    assert raised(model, 22).ir_version == 10


def test_a_change_of_meaning_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(one_node(11, "Hardmax", {"axis": 0}, {}).SerializeToString())
    model = io.load(path)
    assert opset_of(raised(model, 12), "") == 12
    with pytest.raises(ModelError, match=r"cannot be raised to opset 22: Hardmax"):
        raised(model, 22)
    # Larger in one direction and smaller in the other, to the nearest pixel: no newer operator does that.
    path.write_bytes(one_node(10, "Resize", {"mode": "nearest"}, {"s": sizes(1, 1, 2, 0.5)}).SerializeToString())
    with pytest.raises(ModelError, match=r"cannot be raised to opset 22: Resize"):
        raised(io.load(path), 22)


def test_a_scan_over_batches_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    text = """<ir_version: 4, opset_import: ["" : 8]>
    g (float[1,2] start, float[1,3,2] x) => (float[1,2] y, float[1,3,2] z) {
        y, z = Scan<num_scan_inputs = 1, body = step (float[2] a, float[2] b) => (float[2] c, float[2] d) {
            c = Add(a, b)  d = Identity(c)
        }>("", start, x)
    }"""
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    with pytest.raises(ModelError, match=r"cannot be raised to opset 13: Scan"):
        raised(io.load(path), 13)
