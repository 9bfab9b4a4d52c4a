"""The harness sees what it is there to see: the careless policy fails where the careful ones pass."""

import numpy as np
import onnx
import pytest
from onnx import helper

from mpdeploy.conversion.api import convert
from tests.conversion import harness
from tests.conversion.graphs import Case, normal

SUM = Case(
    "a sum beyond the range, of numbers within it",
    """float[1,64] x -> float[1,4] y
    a = MatMul(x, w)
    s = ReduceSum<axes=[1], keepdims=1>(a)
    m = Mul(s, k)
    y = MatMul(m, v)""",
    {"x": np.ones((1, 64), np.float32)},
    {"w": np.full((64, 4096), 0.5, np.float32), "k": 1e-4, "v": np.ones((1, 4), np.float32)},
    opset=11,
)
NORM = Case(
    "the square inside overflows, the result would not",
    """float[2,64] x -> float[2,64] y
    a = MatMul(x, i)
    q = Mul(a, a)
    m = ReduceMean<axes=[-1], keepdims=1>(q)
    s = Sqrt(m)
    d = Div(a, s)
    y = MatMul(d, i)""",
    {"x": normal(2, 64, scale=600)},
    {"i": np.eye(64, dtype=np.float32)},
)
LINEAR = Case(
    "nothing to fear", "float[1,4] x -> float[1,2] y\n y = MatMul(x, w)", {"x": normal(1, 4)}, {"w": normal(4, 2)}
)


def converted(case, folder, precision="fp16", **options):
    path, target = folder / "source.onnx", folder / "result.onnx"
    onnx.save(case.build(), path)
    convert(path, target, precision=precision, **options)
    return onnx.load(path), onnx.load(target), target


def numbers(case, folder, **options):
    source, model, target = converted(case, folder, **options)
    feed = case.arrays()
    return harness.wrong_numbers(source, model, target, feed, harness.run_source(folder / "source.onnx", feed), "fp16")


@pytest.mark.parametrize(("case", "fault"), [(SUM, "NaN or inf"), (NORM, "drifts by 100")], ids=["sum", "norm"])
def test_numbers_under_true_rounding(case, fault, tmp_path):
    assert numbers(case, tmp_path) == []
    found = numbers(case, tmp_path, policy="fast")
    assert any("rounded" in f and fault in f for f in found)
    assert any("half sums" in f for f in found)


def test_lowered(tmp_path):
    case = Case(LINEAR.name, LINEAR.text, LINEAR.feed, LINEAR.weights, low=("y", "ghost"))
    _, _, target = converted(case, tmp_path, keep_fp32=("y",))
    assert harness.not_lowered(case, "fp16", target) == [
        "lowered: y computes in ['FLOAT']",
        "lowered: there is no node ghost",
    ]


def test_contract(tmp_path):
    source, model, _ = converted(LINEAR, tmp_path, low_io=True)
    assert len(harness.broken_contract(source, model)) == 2
    source.doc_string = "something"
    helper.set_model_props(source, {"names": "cat"})
    assert len(harness.broken_contract(source, model)) == 4


def test_validity(tmp_path):
    _, model, _ = converted(LINEAR, tmp_path)
    assert harness.invalid(model) == []
    mixed = onnx.ModelProto.FromString(model.SerializeToString())
    next(n for n in mixed.graph.node if n.name == "y").input[0] = "x"  # past its Cast
    assert len(harness.invalid(mixed)) == 1
    twins = onnx.ModelProto.FromString(model.SerializeToString())
    for node in twins.graph.node:
        node.name = "same"
    assert len(harness.invalid(twins)) == 1


@pytest.mark.parametrize(
    ("now", "fault"),
    [
        (np.float32([1, np.nan, np.inf]), "new NaN"),
        (np.float32([1, 2, 3]), "lost infinities"),
        (np.float32([1, 2.1, np.inf]), "drifts by 5.00%"),
        (np.float32([[1, 2, np.inf]]), "shape"),
    ],
)
def test_differences(now, fault):
    was = np.float32([1, 2, np.inf])
    found = harness.compare([was], [now], 0.02, "x")
    assert len(found) == 1
    assert fault in found[0]
    assert harness.compare([was], [np.float32([1.01, 2, np.inf])], 0.02, "x") == []
    assert harness.compare([np.int64([1, 2])], [np.int64([1, 3])], 0.02, "x") != []


def test_repetition_of_a_result_that_forgot_its_origin(tmp_path):
    _, _, target = converted(LINEAR, tmp_path)
    assert harness.changes_without_stamp("fp16", target) == []
    _, _, target = converted(LINEAR, tmp_path, keep_fp32=("y",))
    assert len(harness.changes_without_stamp("fp16", target)) == 1
