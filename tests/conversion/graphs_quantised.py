"""Quantised graphs: their float side converts, their quantisation stays."""

import numpy as np
from onnx import TensorProto, helper

from tests.conversion.graphs import Case, normal, uniform

RANDOM = np.random.default_rng(0)
X = {"x": np.float32([[-1, 1, 2, 0.3]])}
IMAGE = {"x": uniform(1, 2, 6, 6, low=-1)}


def int8(*shape):
    return RANDOM.integers(-127, 127, shape).astype(np.int8)


def uint8(*shape):
    return RANDOM.integers(0, 255, shape).astype(np.uint8)


QDQ = "q = QuantizeLinear(x, s, z)\n d = DequantizeLinear(q, s, z)\n"
SCALES = {"s": 0.02, "z": np.int8(0)}

CASES = [
    *(
        Case(
            f"activations and weights in QDQ form at opset {opset}",
            f"float[1,4] x -> float[1,2] y\n {QDQ} w = DequantizeLinear(wq, ws, z)\n m = MatMul(d, w)\n y = Add(m, b)",
            X,
            {**SCALES, "wq": int8(4, 2), "ws": 0.01, "b": normal(2)},
            opset=opset,
            low=("m",),
        )
        for opset in (10, 13, 19, 21, 23)
    ),
    Case(
        "a convolution in QDQ form, weights per channel, bias in int32",
        f"""float[1,2,6,6] x -> float[1,4,4,4] y
        {QDQ} w = DequantizeLinear<axis=0>(wq, ws, wz)
        b = DequantizeLinear<axis=0>(bq, bs, bz)
        c = Conv(d, w, b)
        r = Relu(c)
        q2 = QuantizeLinear(r, s2, z2)
        y = DequantizeLinear(q2, s2, z2)""",
        IMAGE,
        {
            **SCALES,
            "wq": int8(4, 2, 3, 3),
            "ws": np.float32([0.01, 0.02, 0.005, 0.03]),
            "wz": np.zeros(4, np.int8),
            "bq": np.int32([100, -200, 300, 5]),
            "bs": np.float32([2e-4, 4e-4, 1e-4, 6e-4]),
            "bz": np.zeros(4, np.int32),
            "s2": 0.05,
            "z2": np.uint8(3),
        },
        opset=13,
    ),
    Case(
        "a bias whose scale vanishes in FP16",
        f"float[1,4] x -> float[1,2] y\n {QDQ} w = DequantizeLinear(wq, ws, z)\n"
        " b = DequantizeLinear(bq, bs, bz)\n y = Gemm(d, w, b)",
        X,
        {
            **SCALES,
            "wq": int8(4, 2),
            "ws": 1e-6,
            "bq": np.int32([10_000_000, -20_000_000]),
            "bs": 2e-8,
            "bz": np.int32(0),
        },
        opset=19,
    ),
    Case(
        "uint8 activations with a zero point, no zero point for weights",
        "float[1,4] x -> float[1,2] y\n q = QuantizeLinear(x, s, z)\n d = DequantizeLinear(q, s, z)\n"
        " w = DequantizeLinear(wq, ws)\n y = MatMul(d, w)",
        X,
        {"s": 0.02, "z": np.uint8(100), "wq": uint8(4, 2), "ws": 0.01},
        opset=13,
    ),
    Case(
        "a dequantised embedding",
        "int64[3] i -> float[3,2] y\n g = Gather(t, i)\n e = DequantizeLinear(g, s, z)\n y = MatMul(e, w)",
        {"i": np.int64([0, 4, 2])},
        {"t": int8(5, 4), "s": 0.01, "z": np.int8(0), "w": normal(4, 2)},
        opset=13,
    ),
    Case(
        "int4 weights in blocks",
        "float[1,4] x -> float[1,2] y\n w = DequantizeLinear<axis=0, block_size=2>(wq, ws)\n y = MatMul(x, w)",
        X,
        {
            "wq": helper.make_tensor("wq", TensorProto.INT4, [4, 2], [1, -2, 3, -4, 5, -6, 7, -8]),
            "ws": np.float32([[0.01, 0.02], [0.03, 0.04]]),
        },
        opset=21,
        low=("y",),
    ),
    Case(
        "float8 weights",
        "float[1,4] x -> float[1,2] y\n w = DequantizeLinear(wq, ws)\n y = MatMul(x, w)",
        X,
        {"wq": helper.make_tensor("wq", TensorProto.FLOAT8E4M3FN, [4, 2], [1.0, -2, 3, -4, 5, -6, 7, -8]), "ws": 0.01},
        opset=19,
        low=("y",),
    ),
    Case(
        "DynamicQuantizeLinear, MatMulInteger, scaled back",
        """float[1,4] x -> float[1,2] y
        q, s, z = DynamicQuantizeLinear(x)
        m = MatMulInteger(q, wq, z, wz)
        f = Cast<to=1>(m)
        t = Mul(s, ws)
        g = Mul(f, t)
        y = Add(g, b)""",
        X,
        {"wq": int8(4, 2), "wz": np.int8(0), "ws": 0.01, "b": normal(2)},
        opset=13,
    ),
    Case(
        "QLinearMatMul and QLinearConv",
        """float[1,2,6,6] x -> float[1,4,4,4] y
        q = QuantizeLinear(x, s, z)
        c = QLinearConv(q, s, z, wq, ws, wz, s2, z)
        y = DequantizeLinear(c, s2, z)""",
        IMAGE,
        {"s": 0.02, "z": np.uint8(128), "wq": int8(4, 2, 3, 3), "ws": 0.01, "wz": np.int8(0), "s2": 0.05},
        opset=13,
    ),
    Case(
        "ConvInteger",
        "uint8[1,2,6,6] x -> float[1,4,4,4] y\n c = ConvInteger(x, wq, z)\n f = Cast<to=1>(c)\n y = Mul(f, s)",
        {"x": uint8(1, 2, 6, 6)},
        {"wq": int8(4, 2, 3, 3), "z": np.uint8(128), "s": 1e-3},
        opset=13,
    ),
    Case(
        "fake quantisation by Div, Round, Clip, Mul",
        """float[1,4] x -> float[1,2] y
        a = Div(x, s)
        r = Round(a)
        c = Clip(r, lo, hi)
        d = Mul(c, s)
        y = MatMul(d, w)""",
        X,
        {"s": 0.02, "lo": -128.0, "hi": 127.0, "w": normal(4, 2)},
        opset=13,
        low=("y",),
    ),
    Case(
        "a scale that an If chooses",
        """float[1,4] x, bool c -> float[1,4] y
        s1 = If(c) <then_branch = th () => (float a) <float a = {0.02}> { },
                    else_branch = el () => (float b) <float b = {0.04}> { }>
        q = QuantizeLinear(x, s1, z)
        y = DequantizeLinear(q, s1, z)""",
        {**X, "c": np.array(True)},
        {"z": np.int8(0)},
        opset=13,
    ),
    Case(
        "a quantised value as an output",
        "float[1,4] x -> int8[1,4] q, float[1,4] y\n r = Mul(x, k)\n q = QuantizeLinear(r, s, z)\n"
        " y = DequantizeLinear(q, s, z)",
        X,
        {"k": 1.5, **SCALES},
        opset=13,
    ),
]
