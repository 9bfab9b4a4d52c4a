"""ONNX Runtime's own operators, with type rules of their own."""

import numpy as np

from tests.conversion.graphs import Case, normal, uniform

MS = {"com.microsoft": 1}
X = {"x": normal(2, 4)}
TOKENS = {"x": normal(1, 4, 8), "s": normal(1, 4, 8, seed=1)}


def case(name, text, feed, weights=None, **options):
    return Case(name, text, feed, weights or {}, domains=MS, **options)


CASES = [
    case(
        "SkipLayerNormalization of numbers around 300, epsilon 1e-12",
        "float[1,4,8] x, float[1,4,8] s -> float[1,4,8] y\n"
        " y = com.microsoft.SkipLayerNormalization<epsilon=1e-12>(x, s, g, b)",
        {"x": normal(1, 4, 8, scale=300), "s": normal(1, 4, 8, scale=300, seed=1)},
        {"g": np.ones(8, np.float32), "b": np.zeros(8, np.float32)},
    ),
    case(
        "SkipLayerNormalization with the sum as a fourth output",
        "float[1,4,8] x, float[1,4,8] s -> float[1,4,8] y, float[1,4,8] sum\n"
        " y, m, d, sum = com.microsoft.SkipLayerNormalization(x, s, g, b, bias)",
        TOKENS,
        {"g": uniform(8), "b": uniform(8), "bias": normal(8)},
    ),
    case(
        "SkipSimplifiedLayerNormalization, overflowing",
        "float[1,4,8] x, float[1,4,8] s -> float[1,4,8] y\n"
        " y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon=1e-6>(x, s, g)",
        {"x": normal(1, 4, 8, scale=400), "s": normal(1, 4, 8, scale=400, seed=1)},
        {"g": uniform(8)},
    ),
    case(
        "Gelu, FastGelu, BiasGelu, QuickGelu",
        "float[2,4] x -> float[2,4] y\n a = com.microsoft.Gelu(x)\n b = com.microsoft.FastGelu(a, bias)\n"
        " c = com.microsoft.BiasGelu(b, bias)\n y = com.microsoft.QuickGelu<alpha=1.702>(c)",
        X,
        {"bias": normal(4)},
    ),
    case(
        "FusedMatMul with a transposed factor and an alpha",
        "float[2,4] x -> float[2,3] y\n [mm] y = com.microsoft.FusedMatMul<transB=1, alpha=0.125>(x, w)",
        X,
        {"w": normal(3, 4)},
        low=("mm",),
        formats=("fp16",),
    ),
    case(
        "FusedMatMul, BF16",
        "float[2,4] x -> float[2,3] y\n y = com.microsoft.FusedMatMul<transB=1, alpha=0.125>(x, w)",
        X,
        {"w": normal(3, 4)},
        formats=("bf16",),
    ),
    case(
        "FusedConv with an activation",
        'float[1,2,6,6] x -> float[1,4,4,4] y\n y = com.microsoft.FusedConv<activation="Relu">(x, w, b)',
        {"x": normal(1, 2, 6, 6)},
        {"w": normal(4, 2, 3, 3), "b": normal(4)},
    ),
    case(
        "Attention with a mask index",
        "float[1,4,8] x, int32[1] n -> float[1,4,8] y\n [att] y = com.microsoft.Attention<num_heads=2>(x, w, b, n)",
        {"x": normal(1, 4, 8), "n": np.int32([3])},
        {"w": normal(8, 24, scale=0.3), "b": normal(24)},
    ),
    case(
        "MultiHeadAttention with a bias and an attention bias",
        "float[1,4,8] q, float[1,4,8] k, float[1,4,8] v, float[1,2,4,4] ab -> float[1,4,8] y\n"
        ' y = com.microsoft.MultiHeadAttention<num_heads=2>(q, k, v, b, "", ab)',
        {"q": normal(1, 4, 8), "k": normal(1, 4, 8, seed=1), "v": normal(1, 4, 8, seed=2), "ab": normal(1, 2, 4, 4)},
        {"b": normal(24)},
    ),
    case(
        "GroupQueryAttention with a cache",
        """float[1,1,16] q, float[1,1,8] k, float[1,1,8] v, float[1,1,4,8] pk, float[1,1,4,8] pv
        -> float[1,1,16] y, float[1,1,5,8] nk, float[1,1,5,8] nv
        y, nk, nv = com.microsoft.GroupQueryAttention<num_heads=2, kv_num_heads=1>(q, k, v, pk, pv, len, total)""",
        {
            "q": normal(1, 1, 16),
            "k": normal(1, 1, 8, seed=1),
            "v": normal(1, 1, 8, seed=2),
            "pk": normal(1, 1, 4, 8, seed=3),
            "pv": normal(1, 1, 4, 8, seed=4),
        },
        {"len": np.int32([4]), "total": np.int32(5)},
    ),
    case(
        "RotaryEmbedding",
        "float[1,2,4,8] x, int64[1,4] p -> float[1,2,4,8] y\n y = com.microsoft.RotaryEmbedding(x, p, c, s)",
        {"x": normal(1, 2, 4, 8), "p": np.int64([[0, 1, 2, 60]])},
        {
            "c": np.cos(np.arange(64)[:, None] * 0.5 ** np.arange(4)).astype(np.float32),
            "s": np.sin(np.arange(64)[:, None] * 0.5 ** np.arange(4)).astype(np.float32),
        },
    ),
    case(
        "MatMulNBits",
        "float[1,32] x -> float[1,2] y\n y = com.microsoft.MatMulNBits<K=32, N=2, bits=4, block_size=32>(x, w, s)",
        {"x": normal(1, 32)},
        {"w": np.random.default_rng(0).integers(0, 255, (2, 1, 16)).astype(np.uint8), "s": np.float32([0.01, 0.02])},
    ),
    case(
        "QLinearAdd and QLinearSigmoid between QuantizeLinear and DequantizeLinear",
        "float[2,4] x -> float[2,4] y\n q = QuantizeLinear(x, s, z)\n"
        " a = com.microsoft.QLinearAdd(q, s, z, q, s, z, s, z)\n y = DequantizeLinear(a, s, z)",
        X,
        {"s": 0.02, "z": np.int8(0)},
    ),
    case(
        "EmbedLayerNormalization",
        "int32[1,4] i, int32[1,4] t -> float[1,4,8] y\n"
        " y, m = com.microsoft.EmbedLayerNormalization(i, t, we, pe, te, g, b)",
        {"i": np.int32([[1, 2, 3, 4]]), "t": np.int32([[0, 0, 1, 1]])},
        {"we": normal(10, 8), "pe": normal(8, 8), "te": normal(2, 8), "g": uniform(8), "b": uniform(8)},
    ),
    case(
        "BiasSoftmax and a matrix product",
        "float[2,4] x -> float[2,3] y\n"
        " a = com.microsoft.BiasSoftmax<axis=1, is_inner_broadcast=0>(x, b)\n [mm] y = MatMul(a, w)",
        X,
        {"b": normal(2, 4), "w": normal(4, 3)},
        low=("mm",),
        runs=False,
    ),
    case(
        "an operator of com.microsoft that nobody knows",
        "float[2,4] x -> float[2,3] y\n a = com.microsoft.Unheard(x)\n y = MatMul(a, w)",
        X,
        {"w": normal(4, 3)},
        runs=False,
    ),
    case(
        "com.microsoft in a branch",
        "float[2,4] x, bool c -> float[2,4] y\n"
        " y = If(c) <then_branch = th () => (float[2,4] t) { t = com.microsoft.Gelu(x) },"
        " else_branch = el () => (float[2,4] e) { e = com.microsoft.QuickGelu(x) }>",
        {**X, "c": np.array(True)},
    ),
]
