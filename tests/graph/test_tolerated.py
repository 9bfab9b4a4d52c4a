"""Files that some runtime runs although ONNX's own tools refuse them (A12, A27), and the bounds of all files (A13)."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper, numpy_helper

from mpdeploy.conversion.api import convert
from mpdeploy.errors import ModelError
from mpdeploy.graph import io
from mpdeploy.verification.api import verify

X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)


def saved(path, text, opset=13, head="", functions="", **weights):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}{head}]> g {text} {functions}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("opset", [11, 13, 16, 17])
@pytest.mark.parametrize("op", ["LayerNormalization", "SimplifiedLayerNormalization"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("data", [None, [{"x": X}]], ids=["without data", "with data"])
def test_normalisations_of_onnx_runtimes_optimiser(opset, op, precision, data, tmp_path, run):
    bias = ", b" if op == "LayerNormalization" else ""
    text = f"(float[N,8] x) => (float[N,8] y) {{ m = MatMul(x, w)  y = {op}<axis = -1>(m, s{bias}) }}"
    s, b = np.full(8, 2, np.float32), np.ones(8, np.float32)
    weights = {"s": s, "b": b} if bias else {"s": s}
    source = saved(tmp_path / "source.onnx", text, opset, w=np.eye(8, dtype=np.float32), **weights)
    result = convert(source, tmp_path / "low.onnx", precision=precision, data=data)
    assert io.load(tmp_path / "low.onnx").graph[-1].op_type in (op, "Cast")
    assert result.low_operators
    if precision == "fp16":
        np.testing.assert_allclose(run(result.model, {"x": X})[0], run(source, {"x": X})[0], rtol=0.02, atol=0.02)


def sparse_constant(model):
    graph = model.graph if not model.functions else model.functions[0]
    values = helper.make_tensor("v", 1, [2], [2.0, 3.0])
    tensor = helper.make_sparse_tensor(values, helper.make_tensor("i", 7, [2], [0, 9]), [8, 4])
    graph.node.insert(0, helper.make_node("Constant", [], ["w"], sparse_value=tensor))
    return model


@pytest.mark.parametrize("place", ["graph", "function"])
def test_a_sparse_constant_becomes_a_dense_one(place, tmp_path, run):
    text = "g (float[4,8] x) => (float[4,4] y) { y = MatMul(x, w) }"
    if place == "function":
        text = "g (float[4,8] x) => (float[4,4] y) { y = l.f(x) }"
        text += '<domain: "l", opset_import: ["" : 17]> f (x) => (y) { y = MatMul(x, w) }'
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "l" : 1]> {text}')
    onnx.save(sparse_constant(model), tmp_path / "source.onnx")
    result = convert(tmp_path / "source.onnx", tmp_path / "low.onnx", precision="fp16")
    dense = np.zeros((8, 4), np.float32)
    dense[0, 0], dense[2, 1] = 2, 3
    np.testing.assert_allclose(run(result.model, {"x": X})[0], X @ dense, rtol=0.01, atol=0.01)


UNSORTED = """(float[4,8] x, bool c) => (float[4,8] y) {
    y = Relu(z)
    z = If (c) <
        then_branch = th () => (float[4,8] a) { a = Neg(i)  i = Exp(h) },
        else_branch = el () => (float[4,8] b) { b = Identity(h) }>
    h = MatMul(x, w)
}"""


def test_nodes_in_any_order_are_sorted_and_it_says_so(tmp_path, run):
    source = saved(tmp_path / "source.onnx", UNSORTED, w=np.eye(8, dtype=np.float32))
    result = convert(source, tmp_path / "low.onnx", precision="fp16")
    assert any("sorted" in note for note in result.notes)
    feed = {"x": X, "c": np.array(False)}
    np.testing.assert_allclose(run(result.model, feed)[0], np.maximum(X, 0), rtol=0.01, atol=0.01)


def test_a_cycle_is_refused(tmp_path):
    source = saved(tmp_path / "source.onnx", "(float[4,8] x) => (float[4,8] y) { y = Add(x, z)  z = Relu(y) }")
    with pytest.raises(ModelError, match="sorted"):
        io.load(source)


def doubling(count):
    body = '<domain: "l", opset_import: ["" : 13, "l" : 1]> f{} (a) => (c) {{ b = l.f{}(a)  c = l.f{}(b) }}'
    functions = [body.format(i, i + 1, i + 1) for i in range(count)]
    last = f'<domain: "l", opset_import: ["" : 13]> f{count} (a) => (b) {{ b = Relu(a) }}'
    return " ".join([*functions, last])


def test_functions_that_expand_without_end_are_refused(tmp_path):
    text = "(float[4,8] x) => (float[4,8] y) { y = l.f0(x) }"
    for count, fault in ((40, "expand to"), (5, "")):
        source = saved(tmp_path / "source.onnx", text, head=', "l" : 1', functions=doubling(count))
        if fault:
            with pytest.raises(ModelError, match=fault):
                io.load(source)
        else:
            assert len(io.load(source).graph) == 32
    loop = '<domain: "l", opset_import: ["" : 13, "l" : 1]> f0 (a) => (b) { b = l.f0(a) }'
    with pytest.raises(ModelError, match="calls itself"):
        io.load(saved(tmp_path / "source.onnx", text, head=', "l" : 1', functions=loop))


def test_a_rank_beyond_reason_is_refused(tmp_path):
    source = saved(tmp_path / "source.onnx", "(float[4,8] x) => (float[4,8] y) { y = Relu(x) }")
    model = onnx.load(source)
    model.graph.initializer.append(onnx.TensorProto(name="t", data_type=1, dims=[1] * 1_000_000, raw_data=bytes(4)))
    source.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="1,000,000 dimensions"):
        io.load(source)


def nested(depth):
    """An If in an If in an If, written as bytes: no library builds what no library reads."""

    def field(number, body):
        length, out = len(body), b""
        while length > 0x7F:
            out, length = out + bytes([length & 0x7F | 0x80]), length >> 7
        return bytes([number << 3 | 2]) + out + bytes([length]) + body

    graph = field(2, b"g")
    for _ in range(depth):
        attribute = field(1, b"then_branch") + bytes([20 << 3 & 0x7F | 0x80, 1, 5]) + field(6, graph)
        graph = field(1, field(4, b"If") + field(5, attribute)) + field(2, b"g")
    return bytes([8, 8]) + field(7, graph)


def test_nesting_beyond_reason_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(nested(2000))
    with pytest.raises(ModelError, match="nested too deeply"):
        io.load(path)


@pytest.mark.parametrize("opset", [18, 20])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_group_normalization_of_opset_18_is_written_out(opset, precision, tmp_path, run):
    # Its scale and bias stand per group; ONNX has withdrawn it, ONNX Runtime runs it.
    rng = np.random.default_rng(1)
    text = """(float[N,8,3,3] x) => (float[N,8,3,3] y) {
        c = Conv(x, w)  n = GroupNormalization<num_groups = 2, epsilon = 0.01>(c, s, b)  y = Conv(n, w) }"""
    w = rng.normal(size=(8, 8, 1, 1)).astype(np.float32)
    s, b = np.array([2, -1], np.float32), np.array([0.5, 3], np.float32)
    source = saved(tmp_path / "source.onnx", text, opset, w=w, s=s, b=b)
    x = rng.normal(size=(4, 8, 3, 3)).astype(np.float32)
    convert(source, tmp_path / "low.onnx", precision=precision)
    expected = run(source, {"x": x})[0]
    io.save(io.load(source), tmp_path / "again.onnx")
    np.testing.assert_allclose(run(tmp_path / "again.onnx", {"x": x})[0], expected, rtol=1e-4, atol=1e-4)
    report = verify(source, tmp_path / "low.onnx", [{"x": x}], noise=False)
    assert report.verdict.passed


def test_a_map_among_the_outputs_is_refused_with_the_exporters_option(tmp_path):
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 13, "ai.onnx.ml" : 3]>
        g (float[N,8] x) => (float[N,8] y) {
        y = Softmax(x)
        z = ai.onnx.ml.ZipMap<classlabels_int64s = [0,1,2,3,4,5,6,7]>(y) }""")
    element = onnx.TypeProto()
    element.map_type.key_type = onnx.TensorProto.INT64
    element.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, []))
    model.graph.output.append(helper.make_value_info("z", helper.make_sequence_type_proto(element)))
    onnx.save(model, tmp_path / "source.onnx")
    with pytest.raises(ModelError, match="'z' is a map") as caught:
        convert(tmp_path / "source.onnx", tmp_path / "low.onnx", precision="fp16")
    assert "'zipmap': False" in str(caught.value)
    assert not (tmp_path / "low.onnx").exists()
