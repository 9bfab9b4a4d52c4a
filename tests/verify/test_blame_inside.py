"""Blame inside functions, branches and loop bodies, and lists of nodes that hold what is needed."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpdeploy import records
from mpdeploy.conversion.api import convert, plan_path_of
from mpdeploy.graph import io
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.runtime.feeds import feeds_of
from mpdeploy.verification.api import verify
from mpdeploy.verification.blame import Kind
from mpdeploy.verification.shorten import shortened, with_kept

node, info = helper.make_node, helper.make_tensor_value_info
LAYERS = {"noise": False, "layers": True}
X = np.linspace(0.1, 10, 8).astype(np.float32)


def square_root(result):
    return [node("Mul", ["r", "r"], ["q"], name="square"), node("Sqrt", ["q"], [result], name="root")]


def branch(write, inner):
    then = helper.make_graph(inner, "then", [], [info("t", 1, None)])
    other = helper.make_graph([node("Neg", ["r"], ["q"], name="neg")], "else", [], [info("q", 1, None)])
    nodes = [
        node("Mul", ["x", "k"], ["r"], name="scale"),
        node("If", ["c"], ["y"], name="if", then_branch=then, else_branch=other),
    ]
    weights = [numpy_helper.from_array(np.float32(100), "k")]
    return write("branch", nodes, {"x": ["N"], "c": []}, {"y": ["N"]}, weights, kinds={"c": TensorProto.BOOL})


def body_of(nodes):
    state = [info("i", TensorProto.INT64, []), info("on", TensorProto.BOOL, []), info("v", 1, None)]
    go = node("Identity", ["on"], ["on2"], name="go")
    return helper.make_graph([*nodes, go], "body", state, [info("on2", TensorProto.BOOL, []), info("w", 1, None)])


def loop(write, nodes):
    weights = [numpy_helper.from_array(np.int64(6), "n"), numpy_helper.from_array(np.float32(2), "two")]
    return write(
        "loop",
        [node("Loop", ["n", "", "x"], ["y"], name="loop", body=body_of(nodes))],
        {"x": ["N"]},
        {"y": ["N"]},
        weights,
    )


DOUBLED = [node("Mul", ["v", "two"], ["r"], name="double"), *square_root("w")]


def function(write, tmp_path):
    path = write("function", [node("Root", ["x"], ["y"], domain="my", name="call")], {"x": ["N"]}, {"y": ["N"]})
    model = onnx.load(path)
    body = [node("Mul", ["a", "a"], ["r"], name="first"), *square_root("b")]
    opsets = [helper.make_opsetid("", 17)]
    model.functions.append(helper.make_function("my", "Root", ["a"], ["b"], body, opsets))
    model.opset_import.append(helper.make_opsetid("my", 1))
    onnx.save(model, path)
    return path, {"x": X * 2}


CASES = {
    "function": function,
    "branch": lambda write, _: (branch(write, square_root("t")), {"x": X, "c": np.array(True)}),
    "loop": lambda write, _: (loop(write, DOUBLED), {"x": X}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_node_inside_is_named_with_its_magnitude_and_the_list_repairs(write, all_low, tmp_path, case):
    source, feed = CASES[case](write, tmp_path)
    low = all_low(source)
    report = verify(source, low, feeds_of([feed]), **LAYERS)
    blame = report.blame
    assert not report.verdict.passed
    (first, *_) = blame.culprits
    inner = {n.name for n in onnx_nodes(source)}
    assert (first.kind, first.op) == (Kind.OVERFLOW, "Mul")
    assert first.node.startswith("square")
    assert first.node in inner
    assert blame.first_broken == first.value
    wanted = {"function": (X * 2.0) ** 4, "branch": (X * 100.0) ** 2, "loop": (X * 64.0) ** 2}[case].max()
    assert first.largest == pytest.approx(float(wanted), rel=1e-5)
    assert f"{first.largest:.4g}" in first.text
    assert blame.repair.passed
    assert set(blame.repair.nodes) <= inner
    again = tmp_path / "again.onnx"
    convert(source, again, precision="fp16", keep_fp32=blame.repair.nodes)
    assert verify(source, again, feeds_of([feed])).verdict.passed
    # It is the list that repairs: the candidate's own plan with it passes, too.
    plan, edited = records.load(PrecisionPlan, plan_path_of(low)), tmp_path / "edited.json"
    records.save(with_kept(plan, blame.repair.nodes), edited)
    convert(source, again, precision="fp16", plan=edited)
    assert verify(source, again, feeds_of([feed])).verdict.passed


def onnx_nodes(path):
    from mpdeploy.graph.scope import all_nodes

    return list(all_nodes(io.load(path)))


def test_a_broken_iteration_is_named_and_what_it_feeds_is_not(write, all_low):
    """`double` stands first in the body, but breaks only after `square` did, by what that fed back."""
    report = verify(*both(loop(write, DOUBLED), all_low), feeds_of([{"x": X}]), **LAYERS)
    layers = {layer.value: layer for layer in report.blame.layers}
    assert layers["r"].broken
    assert (layers["q"].iteration, layers["r"].iteration) == (4, 5)  # 10 * 2 ** 5 squared is beyond 65504
    assert layers["q"].within == ("loop",)
    assert layers["q"].elements == 6 * len(X)
    assert [c.node for c in report.blame.culprits] == ["square"]
    assert "inside 'loop'" in report.blame.culprits[0].text
    assert "iteration 4 of arrays #0" in report.blame.culprits[0].text


def both(source, all_low):
    return source, all_low(source)


def test_the_branch_that_ran_is_measured_and_the_other_is_counted(write, all_low):
    source = branch(write, square_root("t"))
    report = verify(*both(source, all_low), feeds_of([{"x": X, "c": np.array(False)}]), **LAYERS)
    assert report.verdict.passed
    assert report.blame.hidden == 2
    assert [layer.node for layer in report.blame.layers if layer.within] == ["neg"]


def test_values_of_one_name_in_two_branches_are_not_mixed_up(write, all_low):
    source = branch(write, square_root("t"))  # both branches have a value q
    feeds = feeds_of([{"x": X, "c": np.array(True)}, {"x": X, "c": np.array(False)}])
    blame = verify(*both(source, all_low), feeds, **LAYERS).blame
    inside = {layer.node: layer.broken for layer in blame.layers if layer.within}
    assert set(inside) == {"square", "root", "neg"}
    assert inside["square"] > 0
    assert inside["neg"] == 0
    assert blame.hidden == 0


def test_a_branch_inside_a_loop(write, all_low):
    then = helper.make_graph(square_root("t"), "then", [], [info("t", 1, None)])
    other = helper.make_graph([node("Identity", ["r"], ["e"], name="same")], "else", [], [info("e", 1, None)])
    nodes = [
        node("Mul", ["v", "two"], ["r"], name="double"),
        node("Greater", ["i", "two_i"], ["late"], name="late"),
        node("If", ["late"], ["w"], name="if", then_branch=then, else_branch=other),
        node("Constant", [], ["two_i"], value=numpy_helper.from_array(np.int64(2))),
    ]
    nodes = [nodes[3], *nodes[:3]]
    report = verify(*both(loop(write, nodes), all_low), feeds_of([{"x": X}]), **LAYERS)
    assert not report.verdict.passed
    layers = {layer.node: layer for layer in report.blame.layers}
    # Taken in some iterations only, so its values cannot be stacked: what holds them is measured, and named.
    assert {"double", "late", "if", "loop"} <= set(layers)
    assert report.blame.hidden == 3
    assert [c.node for c in report.blame.culprits] == ["if"]
    assert report.blame.repair.passed


def test_values_whose_shape_changes_with_the_iteration_are_counted_as_hidden(write, all_low):
    nodes = [node("Concat", ["v", "v"], ["c"], name="grow", axis=0), node("Mul", ["c", "two"], ["w"], name="double")]
    report = verify(*both(loop(write, nodes), all_low), feeds_of([{"x": X}]), **LAYERS)
    assert report.verdict.passed
    assert report.blame.hidden > 0
    assert "y" in {layer.value for layer in report.blame.layers}


def test_a_scan_is_looked_into(write, all_low):
    body = helper.make_graph(
        [node("Mul", ["row", "row"], ["q"], name="square"), node("Sqrt", ["q"], ["w"], name="root")],
        "body",
        [info("row", 1, [8])],
        [info("w", 1, [8])],
    )
    scan = node("Scan", ["x"], ["y"], name="scan", body=body, num_scan_inputs=1, scan_output_directions=[1])
    source = write("scan", [scan], {"x": [3, 8]}, {"y": [3, 8]})
    x = np.stack([X, X * 10, X * 100])
    report = verify(*both(source, all_low), feeds_of([{"x": x}]), **LAYERS)
    first = report.blame.culprits[0]
    assert (first.node, first.kind) == ("square", Kind.OVERFLOW)
    assert "iteration 2" in first.text
    assert report.blame.repair.passed


def test_many_values_of_a_loop_are_seen_in_several_passes(write, all_low, monkeypatch):
    from mpdeploy.verification import layers

    source = loop(write, DOUBLED)
    whole = verify(*both(source, all_low), feeds_of([{"x": X}]), **LAYERS).blame.layers
    monkeypatch.setattr(layers, "LOOPED", 1)
    assert verify(*both(source, all_low), feeds_of([{"x": X}]), **LAYERS).blame.layers == whole


def test_a_list_holds_only_what_is_needed(write, all_low):
    """A chain in which one square overflows among many harmless nodes that read it or feed it."""
    nodes = [
        node("Tanh", ["x"], ["a"], name="tanh"),
        node("Mul", ["a", "big"], ["b"], name="scale"),
        node("Mul", ["b", "b"], ["q"], name="square"),
        node("Sqrt", ["q"], ["s"], name="root"),
        node("Abs", ["q"], ["p"], name="abs"),
        node("Sqrt", ["p"], ["u"], name="root2"),
        node("Sub", ["s", "u"], ["z"], name="sub"),
        node("Mul", ["s", "small"], ["t"], name="shrink"),
        node("Add", ["t", "z"], ["y"], name="add"),
    ]
    weights = [numpy_helper.from_array(np.float32(v), k) for k, v in {"big": 500, "small": 2e-3}.items()]
    source = write("chain", nodes, {"x": ["N"]}, {"y": ["N"]}, weights)
    repair = verify(*both(source, all_low), feeds_of([{"x": X}]), **LAYERS).blame.repair
    assert repair.passed
    assert "square" in repair.nodes
    assert not {"tanh", "scale", "shrink", "add"} & set(repair.nodes)


def test_a_list_is_shortened_where_it_broke(write, all_low, monkeypatch):
    """Forty feeds, one of which overflows: what the list can do without is asked of the worst few, then of all."""
    from mpdeploy.verification import inside

    seen = []
    compare = inside.compare

    def watched(reference, candidate, feeds, *rest, labels):
        found = compare(reference, candidate, feeds, *rest, labels=labels)
        seen.append(found.feeds)
        return found

    monkeypatch.setattr(inside, "compare", watched)
    nodes = [node("Mul", ["x", "k"], ["r"], name="scale"), *square_root("y")]
    source = write("one", nodes, {"x": ["N"]}, {"y": ["N"]}, [numpy_helper.from_array(np.float32(1), "k")])
    feeds = feeds_of([{"x": X * (100 if i == 33 else 1)} for i in range(40)])
    repair = verify(*both(source, all_low), feeds, **LAYERS).blame.repair
    assert repair.passed
    assert repair.nodes == ("square", "root")
    assert seen == [40, 1, 1, 1]  # the whole list; then, on #33: the whole list, each of both nodes left out
    assert repair.rounds == len(seen)


def test_shortening_asks_a_bounded_number_of_times_and_keeps_what_is_needed():
    asked = []

    def works(nodes):
        asked.append(nodes)
        return {"c", "g"} <= set(nodes)

    names = tuple("abcdefgh")
    nodes, runs = shortened(names, works)
    assert {"c", "g"} <= set(nodes)
    assert len(nodes) <= 4
    assert runs == len(asked) <= 12
    assert shortened(names, lambda nodes: False) == (names, 1)
    assert len(shortened(names, lambda nodes: True)[0]) == 1


def test_an_engine_is_looked_into_by_the_model_it_was_built_from(write, all_low, tmp_path):
    """No engine runs here: one is a subject without a graph, whose runner returns outputs and nothing else."""
    from mpdeploy.errors import UsageError
    from mpdeploy.verification.subject import Subject, opened

    source = loop(write, DOUBLED)
    low = opened(all_low(source))
    engine = Subject(tmp_path / "m.engine", None, low.facts, low.make, None, origin=low.path)
    report = verify(source, engine, feeds_of([{"x": X}]), **LAYERS)
    assert [c.node for c in report.blame.culprits] == ["square"]
    assert report.blame.repair is None
    assert any("which m.engine was built from, under emulation" in note for note in report.notes)
    for origin in (None, tmp_path / "gone.onnx"):
        alone = Subject(tmp_path / "m.engine", None, low.facts, low.make, None, origin=origin)
        assert not verify(source, alone, feeds_of([{"x": X}]), noise=False).verdict.passed
        with pytest.raises(UsageError, match="needs two ONNX models"):
            verify(source, alone, feeds_of([{"x": X}]), **LAYERS)


def test_the_model_of_an_engine_counts_only_while_it_is_the_same(write, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    from mpdeploy.engine.api import build
    from mpdeploy.session.compared import subject_in

    model = write("net", [node("Relu", ["x"], ["y"])], {"x": [2, 4]}, {"y": [2, 4]})
    engine = tmp_path / "out" / "net.engine"
    engine.parent.mkdir()
    build(model, engine)
    assert subject_in(engine).origin == model
    moved = engine.parent / model.name
    model.rename(moved)
    assert subject_in(engine).origin == moved
    moved.write_bytes(moved.read_bytes() + b"\x00")
    assert subject_in(engine).origin is None


def test_without_a_plan_the_repair_is_converted_with_the_data_if_they_are_few_files(write, all_low, tmp_path):
    nodes = [
        node("Mul", ["x", "k"], ["r"], name="scale"),
        *square_root("s"),
        node("MatMul", ["s", "w"], ["y"], name="mm"),
    ]
    w = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    weights = [numpy_helper.from_array(np.float32(100), "k"), numpy_helper.from_array(w, "w")]
    source = write("net", nodes, {"x": ["N", 8]}, {"y": ["N", 64]}, weights)
    low = all_low(source)
    plan_path_of(low).unlink()
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(3):
        np.savez(folder / f"{i}.npz", x=X[None] / (i + 1))
    repair = verify(source, low, str(folder), **LAYERS).blame.repair
    assert repair.passed
    assert f"--data {folder}" in repair.command
    assert repair.low >= 1, "what is no fault stays low"
    for i in range(3, 40):
        np.savez(folder / f"{i}.npz", x=X[None])
    assert "--data" not in verify(source, low, str(folder), **LAYERS).blame.repair.command
