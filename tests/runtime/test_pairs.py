"""Which value of a candidate stands for which of its reference: by name, by structure, through Casts."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpdeploy.runtime.inner import InnerRun
from mpdeploy.runtime.pairs import pair_values

node = helper.make_node
HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
IO = ({"x": ("fp32", ["N", 4])}, {"y": ("fp32", ["N", 4])})


def weights(dtype=np.float32):
    rng = np.random.default_rng(0)
    return [numpy_helper.from_array(rng.standard_normal((4, 4)).astype(dtype), name) for name in ("wq", "wk")]


@pytest.fixture
def reference(load):
    nodes = [
        node("MatMul", ["x", "wq"], ["q"], name="q"),
        node("MatMul", ["x", "wk"], ["k"], name="k"),
        node("Mul", ["q", "k"], ["s"], name="s"),
        node("Exp", ["s"], ["y"], name="exp"),
    ]
    return load(nodes, *IO, weights())


def low(load, rename):
    """The same in half, Exp in FP32, its values under other names."""
    n = rename
    nodes = [
        node("Cast", ["x"], ["x_low"], to=HALF),
        node("MatMul", ["x_low", "wq"], [n("q")]),
        node("MatMul", ["x_low", "wk"], [n("k")]),
        node("Mul", [n("q"), n("k")], [n("s")]),
        node("Cast", [n("s")], ["s_wide"], to=FLOAT),
        node("Exp", ["s_wide"], ["y"]),
    ]
    return load(nodes, *IO, weights(np.float16))


@pytest.mark.parametrize("rename", [lambda n: n, lambda n: f"tool/{n}_0"])
def test_values_pair_by_name_or_by_what_they_are(load, reference, rename):
    pairs, unpaired = pair_values(reference, low(load, rename))
    assert unpaired == ()
    assert [(p.name, p.partner, p.dtype) for p in pairs] == [
        ("x", "x", "float32"),
        ("x", "x_low", "float16"),
        ("q", rename("q"), "float16"),
        ("k", rename("k"), "float16"),
        ("s", rename("s"), "float16"),
        ("y", "y", "float32"),
    ]
    by_name = {p.name: p for p in pairs if not p.narrowed}
    assert by_name["q"].sources == ("x_low",)
    assert by_name["y"].sources == (rename("s"),)  # the Cast between is looked through
    assert (by_name["s"].node, by_name["s"].op, by_name["s"].readers) == ("s", "Mul", ("exp",))
    narrowed = next(p for p in pairs if p.narrowed)
    assert narrowed.readers == ("q", "k")


def test_a_value_has_the_type_it_was_computed_in(load, reference):
    """The Cast that gives an output its declared type changes nothing about that."""
    nodes = [
        node("Cast", ["x"], ["x_low"], to=HALF),
        node("Exp", ["x_low"], ["y_low"]),
        node("Cast", ["y_low"], ["y"], to=FLOAT),
    ]
    pairs, _ = pair_values(reference, load(nodes, *IO))
    assert {p.partner: p.dtype for p in pairs} == {"x": "float32", "x_low": "float16", "y": "float16"}


def test_behind_a_fused_part_names_pick_up_the_thread(load, reference):
    fused = load([node("Gemm", ["x", "wq"], ["z"]), node("Exp", ["z"], ["y"], name="other")], *IO, weights()[:1])
    pairs, unpaired = pair_values(reference, fused)
    assert [(p.name, p.partner) for p in pairs] == [("x", "x"), ("y", "y")]
    assert unpaired == ("q", "k", "s")
    assert pairs[1].sources == ("x",)


def test_values_of_other_operators_do_not_pair(load, reference):
    nodes = [node("Add", ["x", "x"], ["a"]), node("Sub", ["a", "x"], ["b"]), node("Exp", ["b"], ["c"])]
    pairs, unpaired = pair_values(reference, load(nodes, IO[0], {"c": ("fp32", ["N", 4])}))
    assert [p.name for p in pairs] == ["x"]
    assert unpaired == ("q", "k", "s", "y")


def test_inner_arrays_come_in_pairs_in_the_candidates_order(load, reference):
    candidate = low(load, lambda n: f"{n}!")
    pairs, _ = pair_values(reference, candidate)
    run = InnerRun(reference, candidate, pairs, ("ref", "cand"))
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    for _ in range(2):
        got = {p.partner: (r, c) for p, r, c in run.run({"x": x}, "feed")}
        assert set(got) == {p.partner for p in pairs}
        np.testing.assert_array_equal(got["x_low"][0], x)
        np.testing.assert_array_equal(got["x_low"][1], x.astype(np.float16).astype(np.float32))
        for name in ("q!", "s!"):
            r, c = got[name]
            assert np.array_equal(c, c.astype(np.float16).astype(np.float32))
            assert 0 < np.abs(r - c).max() < 0.05
