"""Inner values, piece by piece: the same numbers as one run gives, whatever the cuts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from mpdeploy.errors import ModelError
from mpdeploy.runtime import observe
from mpdeploy.runtime.observe import Observer
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.runtime.segments import fixed_values, segments, symbols
from mpdeploy.runtime.sizes import Sizes

node = helper.make_node


@pytest.fixture
def branched(load):
    """A model with a weight, a computed constant, a branch that captures outer values, and a skip connection."""
    info = helper.make_tensor_value_info
    then = helper.make_graph([node("Mul", ["a", "w2"], ["t"])], "then", [], [info("t", 1, None)])
    other = helper.make_graph([node("Sub", ["a", "x"], ["e"])], "else", [], [info("e", 1, None)])
    rng = np.random.default_rng(0)
    return load(
        [
            node("MatMul", ["x", "w"], ["m"]),
            node("Relu", ["m"], ["a"]),
            node("Neg", ["w"], ["w2"]),
            node("If", ["c"], ["b"], then_branch=then, else_branch=other),
            node("Softmax", ["b"], ["s"]),
            node("Add", ["s", "m"], ["y"]),
            node("Shape", ["y"], ["shape"]),
        ],
        {"x": ("fp32", ["N", 4]), "c": ("bool", [])},
        {"y": ("fp32", ["N", 4])},
        [numpy_helper.from_array(rng.standard_normal((4, 4)).astype(np.float32), "w")],
    )


@pytest.mark.parametrize("limit", [1, 100, 1 << 30])
@pytest.mark.parametrize("condition", [True, False])
def test_every_inner_value_is_that_of_one_whole_run(branched, monkeypatch, limit, condition):
    monkeypatch.setattr(observe, "_PIECE_BYTES", limit)
    x = np.random.default_rng(1).standard_normal((4, 4)).astype(np.float32)
    feed = {"x": x, "c": np.array(condition)}
    names = [v.name for n in branched.graph for v in n.outputs]
    observer = Observer(branched, ["x", *names], "m")
    got = dict(observer.run(feed))
    assert list(got) == ["x", "m", "a", "b", "s", "y", "shape"]  # w2 is a constant
    w = np.array(branched.graph.initializers["w"].const_value.numpy())
    m = x @ w
    a = np.maximum(m, 0)
    b = a * -w if condition else a - x
    s = np.exp(b) / np.exp(b).sum(-1, keepdims=True)
    for name, want in {"m": m, "a": a, "b": b, "s": s, "y": s + m, "shape": [4, 4]}.items():
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(got["y"], OrtRunner(branched, "m").run(feed)["y"], rtol=1e-6)
    assert len(observer._pieces) == {1: 6, 100: 3, 1 << 30: 1}[limit]
    again = dict(observer.run(feed))
    assert all(np.array_equal(again[n], got[n]) for n in got)


def test_sizes_pass_from_one_piece_to_the_next(load, monkeypatch):
    """Resize asks for the length of its sizes before it runs."""
    monkeypatch.setattr(observe, "_PIECE_BYTES", 1)
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Mul", ["s", "two"], ["sizes"]),
        node("Exp", ["x"], ["e"]),
        node("Resize", ["e", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    model = load(
        nodes,
        {"x": ("fp32", [2, "N"])},
        {"y": ("fp32", [4, "M"])},
        [numpy_helper.from_array(np.int64([2, 2]), "two")],
        opset=18,
    )
    got = dict(Observer(model, ["e", "sizes", "y"], "m").run({"x": np.zeros((2, 3), np.float32)}))
    assert got["y"].shape == (4, 6)


def test_one_size_passes_from_one_piece_to_the_next(load, monkeypatch):
    """A15: a height taken from a shape is a scalar; without its shape the runtime sees no sizes for Resize."""
    monkeypatch.setattr(observe, "_PIECE_BYTES", 1)
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "two"], ["h"]),
        node("Gather", ["s", "three"], ["w"]),
        node("Exp", ["x"], ["e"]),
        node("Unsqueeze", ["h", "first"], ["h1"]),
        node("Unsqueeze", ["w", "first"], ["w1"]),
        node("Concat", ["ones", "h1", "w1"], ["sizes"], axis=0),
        node("Resize", ["e", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    numbers = {"two": 2, "three": 3, "first": [0], "ones": [1, 1]}
    stored = [numpy_helper.from_array(np.int64(v), name) for name, v in numbers.items()]
    shape = {"x": ("fp32", [1, 1, "H", "W"])}
    model = load(nodes, shape, {"y": ("fp32", [1, 1, "A", "B"])}, stored, opset=18)
    observer = Observer(model, ["e", "y"], "m")
    x = np.random.default_rng(0).normal(size=(1, 1, 3, 5)).astype(np.float32)
    np.testing.assert_allclose(dict(observer.run({"x": x}))["y"], np.exp(x), rtol=1e-6)
    assert [len(piece.inputs) for piece, _ in observer._pieces] != [1] * len(observer._pieces)


def test_a_piece_that_the_runtime_refuses_is_run_from_the_start(load, monkeypatch):
    """A15: what we cut is never blamed on the model."""
    monkeypatch.setattr(observe, "_PIECE_BYTES", 1)
    nodes = [node("Exp", ["x"], ["e"]), node("Tanh", ["e"], ["t"]), node("Neg", ["t"], ["y"])]
    model = load(nodes, {"x": ("fp32", [3, "N"])}, {"y": ("fp32", [3, "N"])})
    x = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    whole = OrtRunner(model, "m").run({"x": x})["y"]
    real = observe.OrtRunner

    def refusing(piece, *arguments, **options):
        if {v.name for v in piece.graph.inputs} & {"e", "t"}:
            raise ModelError("the runtime refuses the piece")
        return real(piece, *arguments, **options)

    monkeypatch.setattr(observe, "OrtRunner", refusing)
    got = dict(Observer(model, ["e", "t", "y"], "m").run({"x": x}))
    np.testing.assert_allclose(got["y"], whole, rtol=1e-6)
    np.testing.assert_allclose(got["t"], np.tanh(np.exp(x)), rtol=1e-6)


def test_a_fault_of_the_model_is_told_all_the_same(load):
    nodes = [node("Cast", ["f"], ["i"], to=7), node("Gather", ["x", "i"], ["y"])]
    model = load(nodes, {"x": ("fp32", [2]), "f": ("fp32", [1])}, {"y": ("fp32", [1])})
    with pytest.raises(ModelError, match="failed to run"):
        list(Observer(model, ["y"], "m").run({"x": np.zeros(2, np.float32), "f": np.float32([7])}))


def test_pieces_are_cut_by_true_sizes(load, monkeypatch):
    """A20: exporters leave inner dimensions unknown; a guess of their size let pieces grow to gigabytes."""
    monkeypatch.setattr(observe, "_PIECE_BYTES", 16 << 20)
    nodes = [node("NonZero", ["x"], ["n"]), node("Cast", ["n"], ["v0"], to=1)]  # as large as the data say
    nodes += [node("Exp" if i % 2 else "Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(20)]
    model = load(nodes, {"x": ("fp32", ["N"])}, {"v20": ("fp32", [1, "M"])})
    observer = Observer(model, [f"v{i}" for i in range(21)], "m")
    for size in (1 << 10, 1 << 20):
        got = dict(observer.run({"x": np.ones(size, np.float32)}))
        assert got["v20"].shape == (1, size)
    largest = [sum(got[name].nbytes for name in piece.outputs) for piece, _ in observer._pieces]
    assert max(largest) <= (16 << 20) + 2 * got["v20"].nbytes
    assert len(largest) < 10


def test_only_what_is_asked_for_comes(branched):
    observer = Observer(branched, ["s", "none such"], "m")
    feed = {"x": np.eye(4, dtype=np.float32), "c": np.array(True)}
    assert [name for name, _ in observer.run(feed)] == ["s"]
    assert list(Observer(branched, [], "m").run(feed)) == []


def test_each_weight_is_in_one_piece_only_if_one_reads_it(branched):
    pieces = list(segments(branched, ["m", "a", "b", "s", "y"], 1, lambda v: 1))
    assert [list(p.model.graph.initializers) for p in pieces[:2]] == [["w"], []]
    assert sorted(pieces[-1].inputs) == ["m", "s"]
    assert "a" in pieces[2].spent


def test_sizes_follow_the_feed(branched):
    found = symbols(branched.graph.inputs, {"x": np.zeros((7, 4), np.float32)})
    assert found == {"N": 7}
    values = {v.name: v for n in branched.graph for v in n.outputs}
    assert Sizes(branched, {"x": np.zeros((7, 4), np.float32)}).of(values["m"]) == 4 * 7 * 4
    assert {v.name for v in fixed_values(branched.graph)} == {"w", "w2"}


def test_random_numbers_are_no_constants(load):
    model = load([node("RandomNormal", [], ["y"], shape=[3])], {}, {"y": ("fp32", [3])})
    assert dict(Observer(model, ["y"], "m").run({}))["y"].shape == (3,)


def test_a_sequence_is_never_cut(load, monkeypatch):
    monkeypatch.setattr(observe, "_PIECE_BYTES", 1)
    model = load(
        [
            node("SplitToSequence", ["x"], ["q"], axis=0),
            node("SequenceAt", ["q", "one"], ["z"]),
            node("Exp", ["z"], ["y"]),
        ],
        {"x": ("fp32", [3, 2])},
        {"y": ("fp32", [1, 2])},
        [numpy_helper.from_array(np.int64(1), "one")],
    )
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    got = dict(Observer(model, ["q", "z", "y"], "m").run({"x": x}))
    np.testing.assert_allclose(got["y"], np.exp(x[1:2]), rtol=1e-6)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(["Add", "Mul", "Sub"]), st.integers(0, 9), st.integers(0, 9)), max_size=9))
def test_random_graphs_give_the_same_numbers_in_pieces(tmp_path_factory, steps):
    import onnx

    from mpdeploy.graph import io

    nodes = [node("Relu", ["x"], ["v0"])]
    for i, (op, a, b) in enumerate(steps):
        nodes.append(node(op, [f"v{a % (i + 1)}", f"v{b % (i + 1)}"], [f"v{i + 1}"]))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", 1, [3])], [info(f"v{len(steps)}", 1, [3])])
    path = tmp_path_factory.mktemp("g") / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    model = io.load(path)
    x = np.float32([0.5, -1, 0.9])
    names = [f"v{i}" for i in range(len(steps) + 1)]
    values = [np.maximum(x, 0)]
    for i, (op, a, b) in enumerate(steps):
        f = {"Add": np.add, "Mul": np.multiply, "Sub": np.subtract}[op]
        values.append(f(values[a % (i + 1)], values[b % (i + 1)]))
    for piece in segments(model, names, 1, lambda v: 1):
        assert TensorProto.FLOAT in {v.dtype for v in piece.model.graph.outputs}
    got = dict(Observer(model, names, "m").run({"x": x}))
    for name, want in zip(names, values, strict=True):
        np.testing.assert_allclose(got[name], want, rtol=1e-5)
