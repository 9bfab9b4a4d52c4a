"""Underflow: epsilons in tensors and attributes, weights and scales that vanish, small numbers that decide."""

import numpy as np

from tests.conversion.graphs import Case, normal, uniform

CASES = [
    Case(
        "x / (x + 1e-12) at zero",
        "float[1,3] x -> float[1,3] y\n d = Add(x, eps)\n q = Div(one, d)\n y = Mul(q, x)",
        {"x": [[0.0, 1, 2]]},
        {"eps": 1e-12, "one": 1.0},
    ),
    Case(
        "0 / (0 + 1e-9)",
        "float[1,3] x, float[1,3] n -> float[1,3] y\n d = Add(n, eps)\n y = Div(x, d)",
        {"x": [[0.0, 1, 2]], "n": [[0.0, 1, 2]]},
        {"eps": 1e-9},
    ),
    Case(
        "an epsilon vector instead of a scalar",
        "float[2,3] x, float[2,3] n -> float[2,3] y\n d = Add(n, eps)\n y = Div(x, d)",
        {"x": [[0.0, 1, 2], [0, 0, 0]], "n": [[0.0, 1, 2], [0, 0, 0]]},
        {"eps": np.full(3, 1e-10, np.float32)},
    ),
    Case(
        "the denominator is kept from zero by Where",
        """float[4] x, float[4] n -> float[4] y
        z = Equal(n, zero)
        d = Where(z, eps, n)
        y = Div(x, d)""",
        {"x": np.float32([0, 1, 2, 0]), "n": np.float32([0, 1, 2, 0])},
        {"zero": 0.0, "eps": 1e-12},
    ),
    Case(
        "the denominator is kept from zero by its sign",
        "float[4] x, float[4] n -> float[4] y\n a = Abs(n)\n d = Max(a, eps)\n y = Div(x, d)",
        {"x": np.float32([0, 1, 2, 0]), "n": np.float32([0, -1, 2, 0])},
        {"eps": 1e-12},
    ),
    Case(
        "the epsilon comes through Reshape, Unsqueeze and Expand",
        """float[2,3] x -> float[2,3] y
        e = Unsqueeze(eps, ax)
        s = Shape(x)
        f = Expand(e, s)
        d = Add(x, f)
        y = Div(x, d)""",
        {"x": [[0.0, 1, 2], [0, 3, 0]]},
        {"eps": np.float32([1e-12]), "ax": np.int64([0])},
    ),
    Case(
        "the epsilon is a Constant node in value_float form",
        "float[1,3] x -> float[1,3] y\n eps = Constant<value_float=1e-12>()\n d = Add(x, eps)\n y = Div(x, d)",
        {"x": [[0.0, 1, 2]]},
    ),
    Case(
        "the epsilon is made by ConstantOfShape",
        """float[1,3] x -> float[1,3] y
        s = Shape(x)
        eps = ConstantOfShape<value = float[1] {1e-12}>(s)
        d = Add(x, eps)
        y = Div(x, d)""",
        {"x": [[0.0, 1, 2]]},
    ),
    Case(
        "log(clip(p, 1e-12, 1))",
        "float[1,3] x -> float[1,3] y\n c = Clip(x, lo, hi)\n y = Log(c)",
        {"x": [[0.0, 1e-9, 0.5]]},
        {"lo": 1e-12, "hi": 1.0},
        drawn=False,
    ),
    Case(
        "log(clip) with the attributes of opset 6",
        "float[1,3] x -> float[1,3] y\n c = Clip<min=1e-12, max=1.0>(x)\n y = Log(c)",
        {"x": [[0.0, 1e-9, 0.5]]},
        opset=9,
        drawn=False,
    ),
    Case(
        "log(x + 1e-10)",
        "float[1,3] x -> float[1,3] y\n c = Add(x, eps)\n y = Log(c)",
        {"x": [[0.0, 1e-9, 0.5]]},
        {"eps": 1e-10},
        drawn=False,
    ),
    Case(
        "log(max(x, 1e-10)) of a spectrogram, scaled to decibels",
        "float[1,4] x -> float[1,4] y\n c = Max(x, eps)\n l = Log(c)\n y = Mul(l, k)",
        {"x": [[0.0, 1e-9, 0.5, 300]]},
        {"eps": 1e-10, "k": 4.342944819},
        drawn=False,
    ),
    Case(
        "a power spectrum of small samples, then log",
        "float[1,4] x -> float[1,4] y\n p = Mul(x, x)\n l = Log(p)\n y = Mul(l, k)",
        {"x": [[1e-4, 3e-3, 2e-5, 1]]},
        {"k": 4.342944819},
        blind=False,
    ),
    Case(
        "entropy: p · log(p + 1e-12)",
        """float[1,4] p -> float[1,1] y
        c = Add(p, eps)
        l = Log(c)
        m = Mul(p, l)
        s = ReduceSum(m, ax)
        y = Neg(s)""",
        {"p": [[0.0, 0.25, 0.75, 1e-8]]},
        {"eps": 1e-12, "ax": np.int64([1])},
    ),
    Case(
        "log of a softmax in two operators",
        "float[1,4] x -> float[1,4] y\n p = Softmax<axis=-1>(x)\n y = Log(p)",
        {"x": [[0.0, 20, -5, 3]]},
    ),
    Case(
        "log(1 - p) near one",
        "float[4] p -> float[4] y\n q = Sub(one, p)\n y = Log(q)",
        {"p": np.float32([0.9999, 0.5, 0.99, 0.0])},
        {"one": 1.0},
        blind=False,
        drawn=False,
    ),
    Case(
        "inverse sigmoid with an epsilon of 1e-5, as DETR refines boxes",
        """float[4] x -> float[4] y
        c = Clip(x, zero, one)
        a = Clip(c, eps)
        o = Sub(one, c)
        b = Clip(o, eps)
        q = Div(a, b)
        y = Log(q)""",
        {"x": np.float32([0.0, 1, 0.3, 0.99])},
        {"zero": 0.0, "one": 1.0, "eps": 1e-5},
    ),
    Case(
        "weights of 3e-8 times 1e6",
        "float[1,8] x -> float[1,8] y\n t = MatMul(x, w)\n y = Mul(t, k)",
        {"x": np.ones((1, 8), np.float32)},
        {"w": np.full((8, 8), 3e-8, np.float32), "k": 1e6},
    ),
    Case(
        "a convolution with tiny weights before a batch norm with a tiny variance",
        """float[1,2,4,4] x -> float[1,2,4,4] y
        c = Conv(x, w)
        y = BatchNormalization<epsilon=1e-20>(c, s, b, m, v)""",
        {"x": uniform(1, 2, 4, 4)},
        {
            "w": normal(2, 2, 1, 1, scale=1e-8),
            "s": np.ones(2, np.float32),
            "b": np.zeros(2, np.float32),
            "m": np.zeros(2, np.float32),
            "v": np.full(2, 1e-16, np.float32),
        },
    ),
    Case(
        "activations that are all tiny, scaled up later",
        "float[1,4] x -> float[1,4] y\n a = Mul(x, down)\n b = Mul(a, down)\n c = Mul(b, up)\n y = Mul(c, up)",
        {"x": [[1.0, 2, 3, 4]]},
        {"down": 1e-5, "up": 1e5},
    ),
    Case(
        "a squared error of small differences",
        "float[1,4] a, float[1,4] b -> float[1,4] y\n d = Sub(a, b)\n q = Mul(d, d)\n y = Sqrt(q)",
        {"a": [[1e-4, 2e-4, 3e-5, 0]], "b": [[0.0, 1e-4, 0, 0]]},
        blind=False,
    ),
    Case(
        "LayerNormalization with an epsilon of 1e-12 on a constant row",
        "float[1,8] x -> float[1,8] y\n y = LayerNormalization<axis=-1, epsilon=1e-12>(x, g)",
        {"x": np.full((1, 8), 3.0, np.float32)},
        {"g": np.ones(8, np.float32)},
    ),
    Case(
        "RMSNormalization with an epsilon of 1e-12 on a row of zeros",
        "float[2,8] x -> float[2,8] y\n y = RMSNormalization<axis=-1, epsilon=1e-12>(x, g)",
        {"x": np.concatenate([np.zeros((1, 8), np.float32), normal(1, 8)])},
        {"g": np.ones(8, np.float32)},
        opset=23,
    ),
    Case(
        "a decomposed layer norm with an epsilon of 1e-12 on a constant row",
        """float[2,8] x -> float[2,8] y
        mu = ReduceMean<axes=[-1], keepdims=1>(x)
        d = Sub(x, mu)
        q = Mul(d, d)
        v = ReduceMean<axes=[-1], keepdims=1>(q)
        e = Add(v, eps)
        s = Sqrt(e)
        y = Div(d, s)""",
        {"x": np.concatenate([np.full((1, 8), 3, np.float32), normal(1, 8)])},
        {"eps": 1e-12},
    ),
    Case(
        "a decomposed layer norm on small activations, epsilon 1e-5",
        """float[2,8] x -> float[2,8] y
        mu = ReduceMean<axes=[-1], keepdims=1>(x)
        d = Sub(x, mu)
        q = Mul(d, d)
        v = ReduceMean<axes=[-1], keepdims=1>(q)
        e = Add(v, eps)
        s = Sqrt(e)
        y = Div(d, s)""",
        {"x": normal(2, 8, scale=1e-4)},
        {"eps": 1e-10},
        blind=False,
    ),
    Case(
        "LayerNormalization on small activations with a tiny epsilon",
        "float[2,8] x -> float[2,8] y\n y = LayerNormalization<axis=-1, epsilon=1e-12>(x, g)",
        {"x": normal(2, 8, scale=1e-5)},
        {"g": np.ones(8, np.float32)},
        blind=False,
    ),
    Case(
        "BatchNormalization with a variance of 2e5 beside one of 1e-9",
        "float[1,2,2,2] x -> float[1,2,2,2] y\n y = BatchNormalization<epsilon=1e-5>(x, s, b, m, v)",
        {"x": uniform(1, 2, 2, 2) * 1e-3},
        {"s": np.ones(2, np.float32), "b": np.zeros(2, np.float32), "m": np.zeros(2, np.float32), "v": [2e5, 1e-9]},
    ),
    Case(
        "BatchNormalization whose mean is far larger than its deviation",
        "float[1,2,2,2] x -> float[1,2,2,2] y\n y = BatchNormalization<epsilon=1e-5>(x, s, b, m, v)",
        {"x": uniform(1, 2, 2, 2) + 100},
        {"s": np.ones(2, np.float32), "b": np.zeros(2, np.float32), "m": [100.3, 100.6], "v": [0.01, 0.02]},
        blind=False,
        drawn=False,
    ),
    Case(
        "a dequantised weight with a scale of 3e-8",
        """float[1,4] x -> float[1,2] y
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        w = DequantizeLinear(wq, ws, z)
        y = MatMul(d, w)""",
        {"x": [[-1.0, 1, 2, 0.3]]},
        {
            "s": 0.02,
            "z": np.int8(0),
            "wq": np.random.default_rng(0).integers(-127, 127, (4, 2)).astype(np.int8),
            "ws": 3e-8,
        },
        opset=13,
    ),
    Case(
        "a weight dequantised per channel, one scale vanishes",
        "float[1,4] x -> float[1,2] y\n w = DequantizeLinear<axis=1>(wq, ws, z)\n t = MatMul(x, w)\n y = Div(t, ws)",
        {"x": [[-1.0, 1, 2, 0.3]]},
        {
            "wq": np.random.default_rng(0).integers(-127, 127, (4, 2)).astype(np.int8),
            "ws": np.float32([0.01, 2e-9]),
            "z": np.zeros(2, np.int8),
        },
        opset=19,
    ),
    Case(
        "an int8 weight dequantised by a Cast and a Mul with a tiny scale",
        "float[1,4] x -> float[1,2] y\n f = Cast<to=1>(wq)\n w = Mul(f, s)\n t = MatMul(x, w)\n y = Mul(t, up)",
        {"x": [[-1.0, 1, 2, 0.3]]},
        {"wq": np.random.default_rng(0).integers(-127, 127, (4, 2)).astype(np.int8), "s": 1e-9, "up": 1e8},
    ),
    Case(
        "a decay close to one raised to a power",
        "float[4] n -> float[4] y\n y = Pow(base, n)",
        {"n": np.float32([1, 10, 100, 1000])},
        {"base": 0.9999},
    ),
    Case(
        "a decay close to one multiplied",
        "float[4] x, float[4] s -> float[4] y\n a = Mul(s, decay)\n b = Mul(x, rest)\n y = Add(a, b)",
        {"x": np.ones(4, np.float32), "s": np.float32([0, 1, 2, 3])},
        {"decay": 0.9999, "rest": 1e-4},
    ),
    Case(
        "1 - alpha_bar of a diffusion schedule",
        """int64[2] t -> float[2] y
        a = Gather(table, t)
        o = Sub(one, a)
        y = Sqrt(o)""",
        {"t": np.int64([0, 900])},
        {"table": np.cumprod(1 - np.linspace(1e-4, 0.02, 1000)).astype(np.float32), "one": 1.0},
    ),
    Case(
        "a reciprocal of a tiny constant stored in the model",
        "float[4] x -> float[4] y\n y = Div(x, k)",
        {"x": np.float32([1e-6, 2e-6, 0, 3e-6])},
        {"k": 1e-7},
    ),
    Case(
        "a sign is lost where a weight vanishes",
        "float[4] x -> float[4] y\n p = Mul(x, w)\n y = Sign(p)",
        {"x": np.ones(4, np.float32)},
        {"w": np.float32([1e-9, -1e-9, 1, -1])},
    ),
    Case(
        "a geometric mean",
        "float[2,4] x -> float[2,1] y\n l = Log(x)\n m = ReduceMean<axes=[1], keepdims=1>(l)\n y = Exp(m)",
        {"x": np.float32([[1e-9, 1, 1e3, 2], [1e-6, 1e-6, 1, 1]])},
        blind=False,
    ),
    Case(
        "noise of RandomNormalLike with a tiny scale",
        "float[1,4] x -> float[1,4] y\n n = RandomNormalLike<dtype=1, scale=1e-30>(x)\n y = Add(x, n)",
        {"x": [[1.0, 2, 3, 4]]},
    ),
]
