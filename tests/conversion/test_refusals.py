"""Graphs that are invalid: refused with the name of what is wrong, and nothing is written."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpdeploy.conversion.api import convert
from mpdeploy.errors import ModelError
from tests.conversion.graphs import Case, graphs_of, uniform

ROW = "float[1,4] x -> float[1,4] y\n"
W = {"w": uniform(4, 4)}


def without_attributes(name):
    def tweak(model):
        for graph in graphs_of(model.graph):
            for node in graph.node:
                if node.name == name:
                    del node.attribute[:]

    return tweak


def with_attribute(name, **attributes):
    def tweak(model):
        node = next(n for n in model.graph.node if n.name == name)
        del node.attribute[:]
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items())

    return tweak


def branch_output(name, kind):
    """Let the branch declare another type for its result, and make it so."""

    def tweak(model):
        graph = next(g for g in graphs_of(model.graph) if g.name == name)
        graph.node.append(helper.make_node("Cast", [graph.output[0].name], ["cast"], "cast", to=kind))
        graph.output[0].name, graph.output[0].type.tensor_type.elem_type = "cast", kind

    return tweak


def no_opset(model):
    del model.opset_import[:]


def newer_opset(model):
    model.opset_import[0].version = 99


def short_data(model):
    weight = model.graph.initializer[0]
    weight.raw_data = weight.raw_data[:-3]


def negative_dims(model):
    model.graph.initializer[0].dims[0] = -4


def unknown_type(model):
    model.graph.initializer[0].data_type = 99


def half_input(model):
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16


def half_weight(model):
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float16), weight.name))


def extra_branch_output(model):
    graph = next(g for g in graphs_of(model.graph) if g.name == "th")
    graph.output.append(graph.output[0])


def sparse_out_of_range(model):
    values = numpy_helper.from_array(np.float32([0.5]), "s")
    indices = numpy_helper.from_array(np.int64([99]), "s_idx")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 4]))


IF = """float[1,4] x, bool c -> float[1,4] y
 [culprit] y = If(c) <then_branch = th () => (float[1,4] t) { t = Relu(x) },
 else_branch = el () => (float[1,4] e) { e = Exp(x) }>"""
LOOP = """float[1,4] x -> float[1,4] y
 [culprit] y = Loop(n, k, x) <body = b (int64 i, bool ci, float[1,4] s) => (bool co, float[1,4] so)
 { co = Identity(ci) so = Relu(s) }>"""
LOOP_WEIGHTS = {"n": np.int64(2), "k": np.array(True)}
FUNCTION = '<domain: "fn", opset_import: ["" : 17, "fn" : 1]>\nf (p) => (r) { r = fn.f(p) }'

# (case, words that the message must hold)
REFUSED = [
    (Case("an input that nothing makes", ROW + " [culprit] y = Add(x, ghost)", {}), ["ghost", "culprit"]),
    (Case("an output that nothing makes", "float[1,4] x -> float[1,4] ghost\n [culprit] y = Relu(x)", {}), ["ghost"]),
    (
        Case("an unknown operator of the standard domain", ROW + " [culprit] y = Frobnicate(x)", {}),
        ["Frobnicate", "culprit"],
    ),
    (
        Case("two types in one operator", "float[1,4] x, int64[1,4] i -> float[1,4] y\n [culprit] y = Add(x, i)", {}),
        ["culprit"],
    ),
    (Case("half meets float", ROW + " [culprit] y = MatMul(x, w)", {}, W, tweak=half_weight), ["culprit"]),
    (
        Case("a half input meets float weights", ROW + " [culprit] y = MatMul(x, w)", {}, W, tweak=half_input),
        ["culprit"],
    ),
    (
        Case(
            "two types in one operator of a branch",
            IF.replace("t = Relu(x)", "[inner] t = Add(x, i)"),
            {},
            {"i": np.int64([1, 2, 3, 4])},
        ),
        ["inner"],
    ),
    (Case("branches of different types", IF, {}, tweak=branch_output("th", TensorProto.FLOAT16)), ["culprit"]),
    (Case("branches with different numbers of results", IF, {}, tweak=extra_branch_output), ["culprit"]),
    (Case("If without a branch", IF, {}, tweak=without_attributes("culprit")), ["else_branch", "culprit"]),
    (
        Case(
            "a branch whose result nothing in it makes",
            IF.replace("{ t = Relu(x) }", "{ q = Relu(x) }"),
            {},
        ),
        ["'t'", "culprit"],
    ),
    (Case("a Loop whose body has too few inputs", LOOP.replace("bool ci, ", ""), {}, LOOP_WEIGHTS), ["culprit"]),
    (Case("a Loop with a body for more states", LOOP.replace("k, x)", "k, x, x)"), {}, LOOP_WEIGHTS), ["culprit"]),
    (
        Case("a Cast without a type", ROW + " [culprit] y = Cast<to=1>(x)", {}, tweak=without_attributes("culprit")),
        ["to", "culprit"],
    ),
    (
        Case(
            "a Cast to a type of text",
            ROW + " [culprit] y = Cast<to=1>(x)",
            {},
            tweak=with_attribute("culprit", to="float"),
        ),
        ["to", "culprit"],
    ),
    (
        Case("a Cast to no type", ROW + " [culprit] y = Cast<to=1>(x)", {}, tweak=with_attribute("culprit", to=77)),
        ["culprit"],
    ),
    (Case("an attribute that the operator lacks", ROW + " [culprit] y = Relu<slope=2.0>(x)", {}), ["slope", "culprit"]),
    (Case("too many inputs", ROW + " [culprit] y = Relu(x, x)", {}), ["culprit"]),
    (Case("too few inputs", ROW + " [culprit] y = Add(x)", {}), ["culprit"]),
    (Case("too many outputs", ROW + " [culprit] y, z = Relu(x)", {}), ["culprit"]),
    (Case("a value made twice", ROW + " a = Relu(x)\n a = Exp(x)\n [culprit] y = Abs(a)", {}), ["'a'"]),
    (Case("a node makes what is an input", "float[1,4] x -> float[1,4] x\n x = Relu(x)", {}), ["x"]),
    (Case("a cycle", ROW + " a = Add(x, b)\n b = Relu(a)\n [culprit] y = Exp(b)", {}), ["a"]),
    (Case("no opset", ROW + " [culprit] y = Relu(x)", {}, tweak=no_opset), ["opset"]),
    (Case("an opset from the future", ROW + " [culprit] y = Relu(x)", {}, tweak=newer_opset), ["99"]),
    (Case("a domain that is not imported", ROW + " [culprit] y = acme.Relu(x)", {}), ["acme"]),
    (Case("weights that are too short", ROW + " [culprit] y = MatMul(x, w)", {}, W, tweak=short_data), ["w"]),
    (Case("weights of a negative size", ROW + " [culprit] y = MatMul(x, w)", {}, W, tweak=negative_dims), ["w"]),
    (Case("weights of an unknown type", ROW + " [culprit] y = MatMul(x, w)", {}, W, tweak=unknown_type), ["w"]),
    (
        Case(
            "a sparse weight with an index outside", ROW + " [culprit] y = MatMul(x, s)", {}, tweak=sparse_out_of_range
        ),
        ["'s'"],
    ),
    (
        Case("a function that calls itself", ROW + " [culprit] y = fn.f(x)", {}, domains={"fn": 1}, functions=FUNCTION),
        ["f"],
    ),
    (
        Case(
            "BatchNormalization with mixed types before opset 15",
            "float16[1,4,2] x -> float16[1,4,2] y\n [culprit] y = BatchNormalization(x, s, s, s, s)",
            {},
            {"s": uniform(4)},
            opset=14,
        ),
        ["culprit"],
    ),
    (
        Case(
            "a half scale of DequantizeLinear before opset 19",
            "int8[4] x -> float16[4] y\n [culprit] y = DequantizeLinear(x, s)",
            {},
            {"s": np.float16(0.1)},
            opset=13,
        ),
        ["culprit"],
    ),
    (
        Case(
            "a sequence where a tensor belongs",
            "seq(float[4]) x -> float[4] y\n [culprit] y = Relu(x)",
            {},
        ),
        ["culprit"],
    ),
]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(("case", "words"), [pytest.param(c, w, id=c.name) for c, w in REFUSED])
def test_an_invalid_graph_is_refused_by_name(case, words, precision, tmp_path):
    path, target = tmp_path / "broken.onnx", tmp_path / "out.onnx"
    path.write_bytes(case.build().SerializeToString())
    with pytest.raises(ModelError) as caught:
        convert(path, target, precision=precision)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    assert [word for word in words if word not in message.replace(str(path), "")] == []
    assert list(tmp_path.iterdir()) == [path]


def test_the_command_says_one_line_and_leaves_with_3(tmp_path):
    path, target = tmp_path / "broken.onnx", tmp_path / "out.onnx"
    case = Case("", ROW + " [the_node] y = Add(x, ghost)", {})
    path.write_bytes(case.build().SerializeToString())
    words = [sys.executable, "-m", "mpdeploy", "convert", path, "-o", target, "--precision", "fp16"]
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "ghost" in done.stderr
    assert "the_node" in done.stderr
    assert not target.exists()


def test_a_failed_conversion_leaves_the_old_result_alone(tmp_path):
    path, target = tmp_path / "model.onnx", tmp_path / "out.onnx"
    good = Case("", ROW + " y = MatMul(x, w)", {}, W).build()
    onnx.save(good, path)
    convert(path, target, precision="fp16")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p != path}
    good.graph.node[0].op_type = "Frobnicate"
    onnx.save(good, path)
    with pytest.raises(ModelError):
        convert(path, target, precision="fp16")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p != path} == before
