"""Comparisons of models that are not one batch in, one batch out: odd shapes, names and types, odd data."""

import subprocess
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpdeploy.errors import UsageError
from mpdeploy.runtime.feeds import feeds_of, open_feeds
from mpdeploy.verification.api import verify

node = helper.make_node
QUICK, LAYERS = {"noise": False}, {"noise": False, "layers": True}
X = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
IO = {"x": ["N", 4]}, {"y": ["N", 4]}


def codes(report):
    return [reason.code for reason in report.verdict.reasons]


@pytest.fixture
def relu(write):
    return write("relu", [node("Relu", ["x"], ["y"])], *IO)


def total(write, name, low):
    """A sum over everything: an output of no dimension."""
    inner = [node("Cast", ["x"], ["h"], to=10), node("ReduceSum", ["h"], ["s"], keepdims=0)]
    wide = [node("ReduceSum", ["x"], ["y"], keepdims=0)]
    return write(name, [*inner, node("Cast", ["s"], ["y"], to=1)] if low else wide, {"x": ["N", 4]}, {"y": []})


def test_an_output_without_dimensions_is_one_sample_a_feed(write):
    feeds = feeds_of([{"x": X[:n]} for n in (1, 3, 6)])
    report = verify(total(write, "wide", False), total(write, "low", True), feeds, **LAYERS)
    assert report.verdict.passed
    (output,) = report.outputs
    assert (output.samples, output.elements) == (3, 3)
    assert 0 < output.norm_relative < 1e-2
    assert {s.sample for s in output.worst_samples} == {"arrays #0", "arrays #1", "arrays #2"}


def test_an_input_without_dimensions(write):
    source = write("scalar", [node("Exp", ["x"], ["y"])], {"x": []}, {"y": []})
    report = verify(source, source, feeds_of([{"x": np.float32(v)} for v in (0, 1, 2)]), **LAYERS)
    assert (report.verdict.passed, report.data.samples) == (True, 3)


def test_strings_booleans_and_integers_are_compared_exactly(write):
    kinds = {"s": TensorProto.STRING, "t": TensorProto.STRING, "b": TensorProto.BOOL, "i": TensorProto.INT64}

    def build(name, border):
        nodes = [
            node("Identity", ["s"], ["t"]),
            node("Greater", ["x", "k"], ["b"]),
            node("Add", ["x", "k"], ["a"]),
            node("Cast", ["a"], ["i"], to=TensorProto.INT64),
        ]
        weights = [numpy_helper.from_array(np.float32(border), "k")]
        return write(name, nodes, {"s": ["N"], "x": ["N"]}, {n: ["N"] for n in "tbi"}, weights, kinds=kinds)

    feed = {"s": np.array(["a", "bé", "", "d"]), "x": np.float32([-1, 0.5, 1, 9])}
    same = verify(build("a", 0), build("b", 0), feeds_of([feed]), **LAYERS)
    assert same.verdict.passed
    other = verify(build("a", 0), build("c", 1), feeds_of([feed]), **QUICK)
    assert {o.name: o.match for o in other.outputs} == {"t": 1.0, "b": 0.5, "i": 0.0}
    assert all(o.exact for o in other.outputs)
    assert not other.verdict.passed


def test_integers_that_are_all_alike_never_pass(write):
    """A budget that says nothing of integers does not excuse that they are gone."""

    def build(name, factor):
        nodes = [node("Mul", ["x", "k"], ["m"]), node("Cast", ["m"], ["i"], to=TensorProto.INT64)]
        weights = [numpy_helper.from_array(np.float32(factor), "k")]
        return write(name, nodes, {"x": ["N", 4]}, {"i": ["N", 4]}, weights, kinds={"i": TensorProto.INT64})

    feeds = feeds_of([{"x": X[:3] * 10}, {"x": X[3:] * 10}])
    gone = verify(build("a", 1), build("b", 0), feeds, "match>=0", **QUICK)
    assert codes(gone) == ["V104"]
    assert verify(build("a", 1), build("c", 0.5), feeds, "match>=0", **QUICK).verdict.passed
    rare = {"x": np.eye(10, 4, dtype=np.float32)[:, [0, 3, 3, 3]] * np.float32([1, 0, 0, 0])}
    assert verify(build("a", 1), build("d", 0), feeds_of([rare]), "match>=0", **QUICK).verdict.passed


def test_a_batch_axis_that_is_not_the_first(write):
    """Sequences of (steps, batch, features): whole feeds are the samples."""
    io = {"x": ["T", "N", 4]}, {"y": ["N", "T", 4]}
    source = write("seq", [node("Transpose", ["x"], ["y"], perm=[1, 0, 2])], *io)
    feeds = feeds_of([{"x": np.ones((t, n, 4), np.float32) * t} for t, n in ((2, 3), (5, 1), (3, 3))])
    report = verify(source, source, feeds, **LAYERS)
    assert report.verdict.passed
    assert report.outputs[0].elements == 4 * (6 + 5 + 9)


def test_outputs_whose_count_depends_on_the_data(write):
    def build(name, low):
        nodes = [node("Relu", ["x"], ["r"]), node("NonZero", ["r"], ["p"]), node("Transpose", ["p"], ["i"])]
        nodes += [node("GatherND", ["r", "i"], ["g"]), node("Mul", ["g", "k"], ["y"])]
        weights = [numpy_helper.from_array(np.float32(low), "k")]
        return write(name, nodes, {"x": ["N", 4]}, {"y": ["K"]}, weights)

    feeds = feeds_of([{"x": X}, {"x": -np.abs(X)}, {"x": X[:1]}])  # the second gives nothing
    report = verify(build("a", 1), build("b", 1.0001), feeds, "norm_relative<=1e-3", **LAYERS)
    assert report.verdict.passed
    assert report.outputs[0].elements == (X > 0).sum() + (X[:1] > 0).sum()


def two(write, name, first, second):
    names = {"a": "Relu", "b": "Neg", "c": "Relu", "d": "Neg"}
    nodes = [node(names[n], ["x"], [n]) for n in (first, second)]
    return write(name, nodes, {"x": ["N", 4]}, {n: ["N", 4] for n in (first, second)})


def test_outputs_in_another_order_or_under_other_names(write):
    reference = two(write, "ab", "a", "b")
    turned = verify(reference, two(write, "ba", "b", "a"), feeds_of([{"x": X}]), **QUICK)
    assert turned.verdict.passed
    assert turned.notes == ()
    named = verify(reference, two(write, "cd", "c", "d"), feeds_of([{"x": X}]), **QUICK)
    assert named.verdict.passed
    assert any("paired by position" in note for note in named.notes)
    swapped = verify(reference, two(write, "dc", "d", "c"), feeds_of([{"x": X}]), **QUICK)
    assert not swapped.verdict.passed


def test_outputs_that_one_model_has_alone(write, relu):
    both = write("both", [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["z"])], IO[0], {"y": ["N", 4], "z": ["N", 4]})
    more = verify(relu, both, feeds_of([{"x": X}]), **QUICK)
    assert more.verdict.passed
    assert "outputs that only the candidate has are not compared: z" in more.notes
    assert codes(verify(both, relu, feeds_of([{"x": X}]), **QUICK)) == ["V107"]


def test_inputs_under_other_names_are_fed_by_position(write, relu):
    nodes = [node("Sub", ["u", "v"], ["y"])]
    reference = write("xw", [node("Sub", ["x", "w"], ["y"])], {"x": ["N", 4], "w": ["N", 4]}, IO[1])
    candidate = write("uv", nodes, {"u": ["N", 4], "v": ["N", 4]}, IO[1])
    feed = {"w": X, "x": 2 * X, "labels": np.arange(6) % 4}
    report = verify(reference, candidate, feeds_of([feed]), **LAYERS)
    assert report.verdict.passed
    assert report.outputs[0].labelled == 6
    assert "candidate: inputs have other names: they are fed by position" in report.notes
    with pytest.raises(UsageError, match=r"the models do not match.* takes u float32"):  # one of two: no guess is made
        verify(relu, candidate, feeds_of([{"x": X}]), **QUICK)


def test_no_sample_is_no_pass(write, relu):
    for reference, candidate in ((relu, relu), (total(write, "wide", False), total(write, "low", True))):
        report = verify(reference, candidate, feeds_of([{"x": X[:0]}]), **QUICK)
        assert codes(report) == ["V108"]
        assert "no sample" in report.verdict.headline


def test_a_feed_without_samples_among_others_is_no_fault(relu):
    report = verify(relu, relu, feeds_of([{"x": X[:0]}, {"x": X}]), **LAYERS)
    assert (report.verdict.passed, report.data.samples, report.data.feeds) == (True, 6, 2)


def test_a_reference_that_gives_nan_proves_nothing_and_is_blamed_itself(relu):
    report = verify(relu, relu, feeds_of([{"x": X * np.nan}]), **QUICK)
    assert not report.verdict.passed
    assert report.verdict.headline.startswith("the reference itself gives NaN in 24 of 24 values of output 'y'")


@pytest.mark.parametrize("value", [0, 3])
def test_a_constant_reference_is_named_as_proving_little(write, value):
    weights = [numpy_helper.from_array(np.float32(v), k) for k, v in (("zero", 0), ("k", value))]
    source = write("const", [node("Mul", ["x", "zero"], ["z"]), node("Add", ["z", "k"], ["y"])], *IO, weights)
    report = verify(source, source, feeds_of([{"x": X}]), **QUICK)
    assert any("one number only in 'y'" in note for note in report.notes)
    other = write("other", [node("Relu", ["x"], ["y"])], *IO)
    assert not verify(source, other, feeds_of([{"x": X}]), **QUICK).verdict.passed
    assert not any("one number" in note for note in verify(other, other, feeds_of([{"x": X}]), **QUICK).notes)


@pytest.mark.parametrize("content", ["{", '{"schema": "mpdeploy.plan/9"}', "{}"])
def test_a_plan_that_cannot_be_read_is_named(write, relu, content):
    low = [node("Cast", ["x"], ["h"], to=10), node("Relu", ["h"], ["r"]), node("Cast", ["r"], ["y"], to=1)]
    candidate = write("low", low, *IO)
    candidate.with_name("low.plan.json").write_text(content)
    report = verify(relu, candidate, feeds_of([{"x": X}]), **LAYERS)
    assert report.verdict.passed
    assert any(note.startswith("low.plan.json is no plan") for note in report.notes)


STREAM = """
import resource, sys
import numpy as np
from mpdeploy.runtime.feeds import feeds_of
from mpdeploy.verification.api import verify

class Stream:
    def __iter__(self):
        rng = np.random.default_rng(0)
        for _ in range(int(sys.argv[3])):
            yield {"x": rng.standard_normal((1, 4, 64, 64)).astype(np.float32)}

report = verify(sys.argv[1], sys.argv[2], feeds_of(Stream()))
assert report.data.samples == int(sys.argv[3]) and report.verdict.passed
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_thousands_of_samples_take_no_more_memory_than_a_few(write, tmp_path):
    """Five thousand samples of 64 kB are 330 MB: an eighth of that would show."""
    shapes = {"x": ["N", 4, 64, 64]}, {"y": ["N", 4, 64, 64]}
    reference = write("ref", [node("Tanh", ["x"], ["y"])], *shapes)
    low = [node("Cast", ["x"], ["h"], to=10), node("Tanh", ["h"], ["t"]), node("Cast", ["t"], ["y"], to=1)]
    candidate = write("cand", low, *shapes)
    script = tmp_path / "stream.py"
    script.write_text(STREAM)

    def peak(count):
        words = [sys.executable, script, reference, candidate, str(count)]
        return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    few, many = peak(200), peak(5000)
    assert many - few < 40_000, f"{few} kB for 200 samples, {many} kB for 5000"


def test_the_data_of_a_folder_without_files_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"holds no \.npz file"):
        open_feeds(str(tmp_path))
