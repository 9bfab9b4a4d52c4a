"""Sources that are not FP32: half precision of the other kind, quantised, converted before (A2)."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from mpdeploy.conversion.api import convert
from mpdeploy.errors import UsageError
from mpdeploy.graph import io
from mpdeploy.runtime.choose import truthful_runner
from tests.conversion.harness import invalid

X = np.full((4, 200), 20, np.float16)


def saved(path, text, opset=17, **weights):
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {text}')
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, path)
    return path


def run(path, **feed):
    return truthful_runner(io.load(Path(path)), str(path)).run(feed)


@pytest.fixture
def half(tmp_path):
    """A product that leaves FP16's range, brought back by a Mul; a softmax guarded by Casts; a branch."""
    text = """(float16[4,200] x, bool c) => (float16[4,100] y, float16[4,100] z) {
        h = MatMul(x, w)
        y = Mul(h, k)
        f = Cast<to = 1>(y)
        s = Softmax(f)
        p = Cast<to = 10>(s)
        z = If (c) <
            then_branch = th () => (float16[4,100] a) { o = Constant<value_float = 0.5>()  t = Cast<to = 10>(o)
                a = Mul(p, t) },
            else_branch = el () => (float16[4,100] b) { e = RandomNormalLike<dtype = 10>(p)  b = Add(e, p) }>
    }"""
    weight = np.full((200, 100), 40, np.float16)
    weight[0, 0], weight[1, 0], weight[2, 0] = np.inf, 65504, 1e-7
    return saved(tmp_path / "half.onnx", text, w=weight, k=np.float16(0.001))


@pytest.mark.parametrize("data", [False, True], ids=["without data", "with data"])
def test_fp16_becomes_bf16_with_a_warning_about_what_was_lost(half, data, tmp_path):
    feed = {"x": X, "c": np.array(True)}
    finite = onnx.load(half)
    finite.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full((200, 100), 40, np.float16), "w"))
    onnx.save(finite, half)
    assert np.isinf(run(half, **feed)["y"]).all()
    result = convert(half, tmp_path / "low.onnx", precision="bf16", data=[feed] if data else None)
    assert result.notes[0].startswith("the source holds FP16 numbers")
    model = onnx.load(result.model)
    assert invalid(model) == []
    assert [i.type.tensor_type.elem_type for i in (*model.graph.input, *model.graph.output)] == [10, 9, 10, 10]
    assert {t.data_type for t in model.graph.initializer} == {16}
    np.testing.assert_allclose(run(result.model, **feed)["y"].astype(np.float32), 160, rtol=0.01)


def test_the_warning_counts_what_fp16_lost(half, tmp_path):
    note = convert(half, tmp_path / "low.onnx", precision="bf16").notes[0]
    assert "1 infinite, 1 the largest that there is, 1 below its normal range" in note
    assert "11 bits of each of 20,001 stored numbers" in note


def test_there_and_back_again(half, tmp_path):
    """BF16 to FP16 works the same way; with ``low_io`` the inputs and outputs change, too."""
    there = convert(half, tmp_path / "there.onnx", precision="bf16", low_io=True)
    assert onnx.load(there.model).graph.input[0].type.tensor_type.elem_type == 16
    back = convert(there.model, tmp_path / "back.onnx", precision="fp16", low_io=True)
    assert back.notes[0].startswith("the source holds BF16 numbers")
    model = onnx.load(back.model)
    assert (invalid(model), model.graph.input[0].type.tensor_type.elem_type) == ([], 10)


def test_a_plan_of_a_widened_source_applies_to_it(half, tmp_path):
    first = convert(half, tmp_path / "first.onnx", precision="bf16")
    second = convert(half, tmp_path / "second.onnx", precision="bf16", plan=first.plan)
    assert (tmp_path / "first.onnx").read_bytes() == (tmp_path / "second.onnx").read_bytes()
    assert second.notes[0].startswith("the source holds FP16 numbers")


QUANTISED = """(uint8[4,8] x) => (float[4,4] y) {
    m = MatMulInteger(x, w)
    f = Cast<to = 1>(m)
    y = Mul(f, k)
}"""


@pytest.mark.parametrize(
    ("text", "weights", "sentence"),
    [
        (QUANTISED, {"w": np.ones((8, 4), np.uint8), "k": np.float32(0.1)}, "its 1 product is INT8 already"),
        ("(float[4,8] x) => (float[4,8] y) { y = Relu(x) }", {}, "the model has no matrix product"),
        (
            "(float16[4,8] x) => (float16[4,4] y) { y = MatMul(x, w) }",
            {"w": np.ones((8, 4), np.float16)},
            "its 1 product is FP16 already",
        ),
    ],
    ids=["quantised", "no product", "half already"],
)
def test_a_model_in_which_nothing_was_lowered_is_told(text, weights, sentence, tmp_path):
    result = convert(saved(tmp_path / "source.onnx", text, **weights), tmp_path / "low.onnx", precision="fp16")
    assert result.idle.startswith(f"nothing was lowered: {sentence}")


def test_a_lowered_model_is_not_idle(half, tmp_path):
    assert convert(half, tmp_path / "low.onnx", precision="bf16").idle == ""


@pytest.fixture
def converted(tmp_path):
    text = "(float[4,8] x) => (float[4,4] y) { m = MatMul(x, w)  y = Relu(m) }"
    source = saved(tmp_path / "source.onnx", text, w=np.ones((8, 4), np.float32))
    return convert(source, tmp_path / "low.onnx", precision="fp16").model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "nonsense"}, "nonsense"),
        ({"data": "missing.npz"}, "not found"),
        ({"data": [{"x": np.zeros((3, 8), np.float32)}]}, "dimension 0"),
        ({"data": [{"z": np.zeros((4, 8), np.float32)}]}, "lacks input 'x'"),
        ({"keep_fp32": ("nowhere*",)}, "matches 'nowhere\\*'"),
        ({"keep_fp32": ("m",)}, "'m' is fp16"),
        ({"op_fp32": ("MatMul",)}, "'m' is fp16"),
        ({"op_fp32": ("Conv",)}, "matches 'Conv'"),
        ({"low_io": True}, "inputs and outputs in FP32"),
        ({"plan": "missing.json"}, "missing.json"),
    ],
    ids=str,
)
def test_what_is_asked_of_a_converted_source_is_read(options, message, converted, tmp_path):
    with pytest.raises(UsageError, match=message):
        convert(converted, tmp_path / "again.onnx", precision="fp16", **options)
    assert not (tmp_path / "again.onnx").exists()


def test_what_a_converted_source_has_already_may_be_asked_for(converted, tmp_path):
    data = [{"x": np.zeros((4, 8), np.float32)}]
    assert convert(converted, tmp_path / "a.onnx", precision="fp16", policy="safe", data=data).unchanged
