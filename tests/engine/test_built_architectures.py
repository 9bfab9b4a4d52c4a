"""What TensorRT for RTX builds in FP32 it builds converted, too: a graph for each kind that it once failed on.

Parsing is not enough: the builder fuses, and it fails on Casts in places that the parser has nothing against.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from mpdeploy.conversion.api import convert
from mpdeploy.engine.backends import backend_here
from mpdeploy.engine.options import BuildOptions
from mpdeploy.errors import BuildError
from mpdeploy.graph import io
from mpdeploy.runtime.choose import truthful_runner

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
OPTIONS = BuildOptions(capabilities=(86,))

GUARDED = """float[2,4,16,16] x, bool[2,1,16,16] m) => (float[2,4,16,16] y) <float zero = {0}, float far = {-3.4e38}> {
    q = MatMul(x, q16)  k0 = MatMul(x, k16)  k = Transpose<perm = [0, 1, 3, 2]>(k0)  v = MatMul(x, w16)
    s = MatMul(q, k)  mask = Where(m, zero, far)  masked = Add(s, mask)  p = Softmax<axis = -1>(masked)
    nan = IsNaN(p)  guarded = Where(nan, zero, p)  y = MatMul(guarded, v)
}"""
RECURRENT = """float[6,2,8] x) => (float[6,1,2,4] y) {
    a = MatMul(x, w8)  y = STEP<hidden_size = 4>(a, GATES, RECURRENCE)
}"""
TRANSPOSED = """float[2,6,8] x) => (float[6,1,2,4] y) {
    z = MatMul(x, w8)  a = Transpose<perm = [1, 0, 2]>(z)  y = LSTM<hidden_size = 4>(a, lstm_w, lstm_r)
}"""
WITH_LENGTHS = """float[6,2,8] x, int32[2] n) => (float[6,1,2,4] y) {
    a = MatMul(x, w8)  y = LSTM<hidden_size = 4>(a, lstm_w, lstm_r, "", n)
}"""
SCAN = """float[6,2,8] x, float[2,8] h) => (float[2,8] last, float[6,2,8] y) {
    last, y = Scan<num_scan_inputs = 1, body = step (float[2,8] before, float[2,8] now)
        => (float[2,8] after, float[2,8] made) {
            a = MatMul(now, w8)  b = MatMul(before, w8)  c = Add(a, b)  after = Tanh(c)  made = Identity(after)
        }>(h, x)
}"""
OLD = """float[2,3,8,8] x) => (float[2,3,8,8] y) { y = Shrink(x) }"""
BETWEEN = """float[2,3,8,8] x) => (float[OUT] y) { a = MatMul(x, w8)  b = STEP(a)  y = MatMul(b, wOUT) }"""


def gates(cell, hidden=4, inputs=8):
    count = {"LSTM": 4, "GRU": 3, "RNN": 1}[cell] * hidden
    return {f"{cell.lower()}_w": (1, count, inputs), f"{cell.lower()}_r": (1, count, hidden)}


SHAPES = {
    "q16": (16, 16),
    "k16": (16, 16),
    "w16": (16, 16),
    "w8": (8, 8),
    "w4": (4, 4),
    **gates("LSTM"),
    **gates("GRU"),
    **gates("RNN"),
}


def recurrent(cell):
    return RECURRENT.replace("STEP", cell).replace("GATES, RECURRENCE", f"{cell.lower()}_w, {cell.lower()}_r")


def between(step, out="2,3,8,8"):
    return BETWEEN.replace("STEP", step).replace("wOUT", f"w{out[-1]}").replace("OUT", out)


@dataclass(frozen=True)
class Kind:
    text: str
    options: dict[str, object] = field(default_factory=dict)
    opset: int = 22


KINDS = {
    "attention with a boolean mask": Kind(GUARDED),
    "a guard behind softmax that the user keeps": Kind(GUARDED, {"op_fp32": ("Where",)}),
    "a softmax kept with its guard": Kind(GUARDED, {"op_fp32": ("Where", "Softmax"), "policy": "fast"}),
    "GRU behind a product": Kind(recurrent("GRU")),
    "LSTM that the user keeps": Kind(recurrent("LSTM"), {"op_fp32": ("LSTM",)}),
    "RNN that the user keeps, and low inputs": Kind(recurrent("RNN"), {"op_fp32": ("RNN",), "low_io": True}),
    "LSTM behind a Transpose that stays FP32": Kind(TRANSPOSED, {"op_fp32": ("LSTM", "Transpose")}),
    "LSTM with lengths": Kind(WITH_LENGTHS),
    "LSTM with lengths, all that the types allow": Kind(WITH_LENGTHS, {"policy": "fast"}),
    "Scan over an FP32 sequence": Kind(SCAN),
    "Mish": Kind(between("Mish"), {"policy": "fast"}),
    "Celu": Kind(between("Celu<alpha = 2.0>"), {"policy": "fast"}, opset=28),
    "HardSwish": Kind(between("HardSwish"), {"policy": "fast"}),
    "LpNormalization": Kind(between("LpNormalization"), {"policy": "fast"}),
    "LpPool": Kind(between("LpPool<kernel_shape = [2, 2], strides = [2, 2]>", "2,3,4,4"), {"policy": "fast"}),
    "low inputs of an old model": Kind(
        "float[2,3,8,8] x) => (float[2,3,8,8] y) { y = Shrink(x) }", {"low_io": True}, 9
    ),
}


@pytest.fixture
def model(tmp_path):
    """Return a function that writes the graph of a kind, with the weights that it reads."""

    def write(kind):
        made = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {kind.opset}]> g ({kind.text}')
        random = np.random.default_rng(0)
        for name, shape in SHAPES.items():
            if name in kind.text:
                array = (random.standard_normal(shape) * 0.3).astype(np.float32)
                made.graph.initializer.append(numpy_helper.from_array(array, name))
        path = tmp_path / "source.onnx"
        onnx.save(made, path)
        return path

    return write


def build(path):
    backend = backend_here("rtx")
    with backend.parse(path) as parsed:
        parsed.build(OPTIONS, backend.target(OPTIONS, ()), None, path.with_suffix(".engine"))


@pytest.mark.parametrize("name", KINDS)
def test_what_builds_in_fp32_builds_converted(model, name, tmp_path):
    source = model(KINDS[name])
    build(source)
    for precision in ("fp16", "bf16"):
        made = tmp_path / f"{precision}.onnx"
        convert(source, made, precision=precision, **KINDS[name].options)
        build(made)


@pytest.mark.parametrize("name", ["a guard behind softmax that the user keeps", "GRU behind a product"])
def test_what_keeps_a_cast_apart_changes_no_number(model, name, tmp_path):
    source, made = model(KINDS[name]), tmp_path / "bf16.onnx"
    convert(source, made, precision="bf16", **KINDS[name].options)
    converted = io.load(made)
    apart = [node for node in converted.graph if node.op_type == "Max"]
    assert apart
    random = np.random.default_rng(1)
    shapes = {v.name: (v.dtype, tuple(v.shape)) for v in converted.graph.inputs}
    feed = {
        name: random.standard_normal(shape).astype(np.float32) if str(kind) == "FLOAT" else random.random(shape) < 0.5
        for name, (kind, shape) in shapes.items()
    }
    with_barrier = truthful_runner(converted, "with").run(feed)
    for node in apart:
        node.outputs[0].replace_all_uses_with(node.inputs[0])
        node.graph.remove(node, safe=True)
    without = truthful_runner(converted, "without").run(feed)
    np.testing.assert_array_equal(with_barrier["y"], without["y"])


def test_a_fusion_that_fails_is_told_with_what_to_do(tmp_path):
    """The guard's pattern as another tool may write it."""
    path = tmp_path / "foreign.onnx"
    text = """g (float16[2,4,10,16] q, float16[2,4,16,10] k, float16[2,4,10,16] v) => (float16[2,4,10,16] y)
    <float zero = {0}> {
        s = MatMul(q, k)  wide = Cast<to = 1>(s)  p = Softmax<axis = -1>(wide)  nan = IsNaN(p)
        guarded = Where(nan, zero, p)  narrow = Cast<to = 10>(guarded)  y = MatMul(narrow, v)
    }"""
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]> {text}'), path)
    with pytest.raises(BuildError, match=r"is_softmax.*--keep-fp32"):
        build(path)
