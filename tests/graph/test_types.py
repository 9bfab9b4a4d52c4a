"""Element types of values, and the strict check that a strongly typed parser does."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from mpdeploy.graph import io
from mpdeploy.graph.operators import element_type as of_text
from mpdeploy.graph.operators import opset_of, signature
from mpdeploy.graph.scope import all_nodes, all_values
from mpdeploy.graph.types import element_type, infer, is_container, type_faults

FLOAT, HALF, BRAIN = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16


@pytest.fixture
def load(tmp_path):
    def parse(text):
        path = tmp_path / "model.onnx"
        path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
        return io.load(path)

    return parse


def types_of(model):
    return {v.name: element_type(v) for v in all_values(model)}


def test_types_go_through_microsofts_operators(load):
    model = load(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float16[N,8] x, float16[8,8] w) => (float16[N,8] y) {
        a = com.microsoft.FusedMatMul(x, w)
        b = com.microsoft.QuickGelu(a)
        c = Cast<to = 1>(b)
        d = com.microsoft.BiasGelu(c, bias)
        e = Cast<to = 10>(d)
        y = Add(e, x)
    }""".replace("float16[8,8] w)", "float16[8,8] w, float[8] bias)")
    )
    assert {n: types_of(model)[n] for n in "abcde"} == {"a": HALF, "b": HALF, "c": FLOAT, "d": FLOAT, "e": HALF}
    assert list(type_faults(model)) == []


def test_types_stay_unknown_behind_an_operator_that_nobody_knows(load):
    model = load("""<ir_version: 8, opset_import: ["" : 17, "private" : 3]>
    g (float[4] x) => (float[4] y) { a = private.Secret(x)  b = Relu(a)  y = Add(b, x) }""")
    assert types_of(model)["a"] is None
    assert list(type_faults(model)) == []


def test_types_go_into_branches_and_loops_and_out_again(load):
    model = load("""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float16[4] x, bool c, int64 n) => (float16[4] y, float16[M,4] ys, float16[K] z) {
        p = If (c) <then_branch = t () => (a) { a = com.microsoft.QuickGelu(x) },
                    else_branch = e () => (b) { b = com.microsoft.QuickGelu(x) }>
        y, ys = Loop (n, c, p) <body = l (int64 i, bool k, s) => (k2, s2, o) {
            k2 = Identity(k)  s2 = com.microsoft.QuickGelu(s)  o = Abs(s2) }>
        z = Concat<axis = 0>(y, p)
    }""")
    found = types_of(model)
    assert {found[name] for name in ("a", "b", "p", "s", "s2", "o", "y", "ys", "z")} == {HALF}


def test_a_sequence_has_the_type_of_its_tensors(load):
    model = load("""<ir_version: 8, opset_import: ["" : 17]>
    g (float16[4] x) => (float16[K] z) { q = SequenceConstruct(x, x)  z = ConcatFromSequence<axis = 0>(q) }""")
    values = {v.name: v for v in all_values(model)}
    assert element_type(values["q"]) is HALF
    assert is_container(values["q"])
    assert not is_container(values["z"])


def test_an_attribute_decides_the_type(load):
    model = load("""<ir_version: 10, opset_import: ["" : 22]>
    g (int64[2] shape, float[3,3] m) => (bfloat16[3,3] e, float16[A,B] u) {
        e = EyeLike<dtype = 16>(m)  r = RandomNormalLike<dtype = 10>(m)  u = Cast<to = 10>(r)
    }""")
    found = types_of(model)
    assert (found["e"], found["r"], found["u"]) == (BRAIN, HALF, HALF)


def mixed(nodes, kinds, opset=17, domains=()):
    """A model built in memory, so that nothing has refused it before."""
    infos = [helper.make_tensor_value_info(n, int(k), [4]) for n, k in kinds.items()]
    out = [helper.make_tensor_value_info("y", int(kinds.get("y", FLOAT)), [4])]
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    graph = helper.make_graph(nodes, "g", [i for i in infos if i.name != "y"], out)
    model = ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=10))
    infer(model)
    return model


@pytest.mark.parametrize(
    ("node", "kinds", "opset", "says"),
    [
        (("Add", ["a", "b"]), {"a": FLOAT, "b": HALF}, 17, "Add 'node' mixes FLOAT and FLOAT16 ('b')"),
        (("Relu", ["a"]), {"a": HALF, "y": FLOAT}, 17, "Relu 'node' mixes FLOAT16 and FLOAT ('y')"),
        (("Conv", ["a", "b"]), {"a": BRAIN, "b": BRAIN, "y": BRAIN}, 21, "Conv 'node' does not take BFLOAT16 for 'a'"),
        (("Einsum", ["a"]), {"a": BRAIN, "y": BRAIN}, 24, "Einsum 'node' does not take BFLOAT16 for 'a'"),
        (("Concat", ["a", "b"]), {"a": FLOAT, "b": HALF}, 17, "mixes FLOAT and FLOAT16"),
        (("Gather", ["a", "b"]), {"a": FLOAT, "b": FLOAT}, 17, "does not take FLOAT for 'b'"),
        (("Where", ["a", "b", "c"]), {"a": FLOAT, "b": HALF, "c": HALF, "y": HALF}, 17, "does not take FLOAT for 'a'"),
    ],
)
def test_the_strict_check_names_node_type_and_value(node, kinds, opset, says):
    attributes = {"equation": "i->i"} if node[0] == "Einsum" else {}
    faults = list(type_faults(mixed([helper.make_node(*node, ["y"], name="node", **attributes)], kinds, opset)))
    assert says in faults[0]


@pytest.mark.parametrize(
    ("node", "kinds", "opset"),
    [
        (("Conv", ["a", "b"]), {"a": BRAIN, "b": BRAIN, "y": BRAIN}, 22),
        (("Pow", ["a", "b"]), {"a": HALF, "b": FLOAT, "y": HALF}, 17),
        (("Cast", ["a"]), {"a": HALF, "y": FLOAT}, 17),
        (("Greater", ["a", "b"]), {"a": HALF, "b": HALF, "y": ir.DataType.BOOL}, 17),
        (("Unheard", ["a", "b"]), {"a": HALF, "b": FLOAT}, 17),
    ],
)
def test_the_strict_check_allows_what_the_schemas_allow(node, kinds, opset):
    attributes = {"to": 1} if node[0] == "Cast" else {}
    assert list(type_faults(mixed([helper.make_node(*node, ["y"], **attributes)], kinds, opset))) == []


def test_the_strict_check_looks_into_branches(load):
    model = load("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x, bool c) => (float[4] y) {
        y = If (c) <then_branch = t () => (float[4] a) { a = Neg(x) },
                    else_branch = e () => (float[4] b) { b = Abs(x) }>
    }""")
    node = next(n for n in all_nodes(model) if n.op_type == "Abs")
    node.outputs[0].type = ir.TensorType(HALF)
    assert [f.split(" ")[0] for f in type_faults(model)] == ["Abs"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("tensor(float16)", HALF),
        ("seq(tensor(bfloat16))", BRAIN),
        ("optional(seq(tensor(float)))", FLOAT),
        ("tensor(float8e4m3fn)", ir.DataType.FLOAT8E4M3FN),
        ("sparse_tensor(double)", ir.DataType.DOUBLE),
        ("map(string, tensor(float))", None),
    ],
)
def test_type_strings(text, kind):
    assert of_text(text) is kind


def test_signatures_know_variadic_and_optional_operands():
    concat = signature("", "Concat", 17)
    assert concat.input(7).type == concat.output(0).type
    assert signature("", "Relu", 17).input(1) is None
    assert signature("", "Loop", 17).input(5).homogeneous is False
    assert signature("nobody", "Relu", 17) is None
    assert signature("", "Relu", 2**40) is None
    assert BRAIN in signature("", "Conv", 22).allowed["T"]
    assert BRAIN not in signature("", "Conv", 21).allowed["T"]
    assert HALF in signature("com.microsoft", "MultiHeadAttention", 1).allowed["T"]


def test_an_initializer_without_declared_type_has_that_of_its_data():
    graph = helper.make_graph(
        [helper.make_node("Relu", ["w"], ["y"])], "g", [], [helper.make_tensor_value_info("y", 1, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "w")],
    )  # fmt: skip
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("ai.onnx", 17)], ir_version=8))
    model.graph.initializers["w"].type = None
    infer(model)
    assert element_type(model.graph.initializers["w"]) is FLOAT
    assert opset_of(model, "") == opset_of(model, "ai.onnx") == 17
    assert opset_of(model, "nobody") == 1
