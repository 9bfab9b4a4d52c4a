"""What quantised products multiply is read off the network that TensorRT's own parser makes."""

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from mpdeploy.cli.engines import show_engine
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.options import BuildOptions, parse_capabilities
from mpdeploy.engine.proof import ProductFormat
from mpdeploy.errors import BuildError

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")

INT8 = TensorProto.INT8, np.dtype(np.int8)
FP8 = TensorProto.FLOAT8E4M3FN, np.dtype(ml_dtypes.float8_e4m3fn)
QUANTISED = "q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)"
SM89 = BuildOptions(capabilities=parse_capabilities(["89"]))


def saved(path, nodes, kind, head="float16[4,16] x", shape=(16, 16)):
    element, dtype = kind
    text = f'<ir_version: 10, opset_import: ["" : 19]> g ({head}) => (float16 y) {{ {nodes} y = MatMul(a, b) }}'
    model = onnx.parser.parse_model(text)
    numbers = np.random.default_rng(0).integers(-4, 5, shape).astype(dtype)
    model.graph.initializer.extend(
        [
            helper.make_tensor("w", element, shape, numbers.tobytes(), raw=True),
            helper.make_tensor("z", element, [], np.zeros(1, dtype).tobytes(), raw=True),
            helper.make_tensor("s", TensorProto.FLOAT16, [], np.float16(0.25).tobytes(), raw=True),
        ]
    )
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT16, [4, 16]))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("kind", "word"), [(INT8, "int8"), (FP8, "fp8")])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_dequantised_operands_count_under_what_they_multiply(kind, word, turned, tmp_path, capsys):
    weight = "e = DequantizeLinear(w, s, z)  b = Transpose(e)" if turned else "b = DequantizeLinear(w, s, z)"
    model = saved(tmp_path / "model.onnx", f"{QUANTISED}  a = Identity(d)  {weight}", kind)
    record = build_engine(model, tmp_path / "model.engine", options=SM89, expect=ProductFormat(word))
    assert record.expected == word
    assert [(ProductFormat(word).covers(kind), count) for kind, count in record.census.compute.items()] == [(True, 1)]
    show_engine(record, "model.engine")
    assert f"arithmetic  1 {word}" in capsys.readouterr().out
    with pytest.raises(BuildError, match=f"would not compute in fp16: of its arithmetic layers, 1 in {word}"):
        build_engine(model, tmp_path / "other.engine", options=SM89, expect=ProductFormat.FP16)


def test_a_product_with_a_quantised_weight_alone_is_none_of_int8(tmp_path):
    model = saved(tmp_path / "model.onnx", "a = Identity(x)  b = DequantizeLinear(w, s, z)", INT8)
    record = build_engine(model, tmp_path / "model.engine", options=SM89, expect=ProductFormat.FP16)
    assert record.census.compute == {"fp16": 1}
    assert record.census.weights["int8"] == 256
    with pytest.raises(BuildError, match=r"would not compute in int8.*both operands .* DequantizeLinear"):
        build_engine(model, tmp_path / "other.engine", options=SM89, expect=ProductFormat.INT8)


def test_fp4_products_count_as_such(tmp_path):
    # NVFP4: blocks of 16 numbers with scales in FP8, which have a scale of their own; activations are quantised on
    # the way by TensorRT's operator.
    text = """<ir_version: 11, opset_import: ["" : 23, "trt" : 1]> g (float16[16,64] x) => (float16[16,32] y) {
        xq, xs = trt.TRT_FP4DynamicQuantize<axis = -1, block_size = 16, scale_type = 17>(x, gx)
        xr = DequantizeLinear(xs, gx)
        a = DequantizeLinear<axis = -1, block_size = 16>(xq, xr)
        r = DequantizeLinear(ws, g)
        b = DequantizeLinear<axis = 0, block_size = 16>(w, r)
        y = MatMul(a, b)
    }"""
    model = onnx.parser.parse_model(text)
    scales = np.ones((4, 32), ml_dtypes.float8_e4m3fn)
    model.graph.initializer.extend(
        [
            helper.make_tensor("w", TensorProto.FLOAT4E2M1, (64, 32), bytes([0x21]) * (64 * 32 // 2), raw=True),
            helper.make_tensor("ws", TensorProto.FLOAT8E4M3FN, (4, 32), scales.tobytes(), raw=True),
            helper.make_tensor("g", TensorProto.FLOAT16, [], np.float16(0.5).tobytes(), raw=True),
            helper.make_tensor("gx", TensorProto.FLOAT16, [], np.float16(0.5).tobytes(), raw=True),
        ]
    )
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    options = BuildOptions(capabilities=parse_capabilities(["120"]))
    record = build_engine(path, tmp_path / "model.engine", options=options, expect=ProductFormat.FP4)
    assert set(record.census.compute) == {"fp4"}
