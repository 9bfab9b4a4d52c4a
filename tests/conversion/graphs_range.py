"""Range: values, constants and attributes beyond the format; sums, squares, exponentials inside an operator."""

import numpy as np

from tests.conversion.graphs import Case, normal, uniform

SPREAD = normal(2, 64, scale=600)
MEAN = "mu = ReduceMean<axes=[-1], keepdims=1>(x)\n d = Sub(x, mu)\n"

LAYER_NORMS = {
    "pow": ("p = Pow(d, two)", "sd = Sqrt(ve)\n y = Div(d, sd)"),
    "mul": ("p = Mul(d, d)", "sd = Sqrt(ve)\n y = Div(d, sd)"),
    "reciprocal of the root": ("p = Mul(d, d)", "sd = Sqrt(ve)\n r = Reciprocal(sd)\n y = Mul(d, r)"),
    "power of -1/2": ("p = Mul(d, d)", "r = Pow(ve, mhalf)\n y = Mul(d, r)"),
    "power of 1/2": ("p = Pow(d, two)", "r = Pow(ve, half)\n y = Div(d, r)"),
    "one over the root": ("p = Mul(d, d)", "sd = Sqrt(ve)\n r = Div(one, sd)\n y = Mul(d, r)"),
}
NUMBERS = {"two": 2.0, "eps": 1e-5, "half": 0.5, "mhalf": -0.5, "one": 1.0}


def numbers(*names):
    return {n: NUMBERS[n] for n in names}


CASES = [
    *(
        Case(
            f"layer norm in single operators, {spelling}",
            f"float[2,64] x -> float[2,64] y\n {MEAN} {square}\n v = ReduceMean<axes=[-1], keepdims=1>(p)\n"
            f" ve = Add(v, eps)\n {rest}",
            {"x": SPREAD},
            {k: v for k, v in NUMBERS.items() if k in square + rest + "eps" and (k != "half" or "mhalf" not in rest)},
        )
        for spelling, (square, rest) in LAYER_NORMS.items()
    ),
    Case(
        "layer norm by mean of squares less square of mean",
        """float[2,64] x -> float[2,64] y
        mu = ReduceMean<axes=[-1], keepdims=1>(x)
        xx = Mul(x, x)
        m2 = ReduceMean<axes=[-1], keepdims=1>(xx)
        mm = Mul(mu, mu)
        v = Sub(m2, mm)
        ve = Add(v, eps)
        sd = Sqrt(ve)
        d = Sub(x, mu)
        y = Div(d, sd)""",
        {"x": SPREAD},
        numbers("eps"),
    ),
    Case(
        "variance as mean of squares less square of mean cancels",
        """float[2,256] x -> float[2,1] v
        mu = ReduceMean<axes=[-1], keepdims=1>(x)
        xx = Mul(x, x)
        m2 = ReduceMean<axes=[-1], keepdims=1>(xx)
        mm = Mul(mu, mu)
        v = Sub(m2, mm)""",
        {"x": normal(2, 256) + 100},
        blind=False,  # without data nobody knows that the mean is far from zero
        drawn=False,
    ),
    Case(
        "variance by a product with its own mean",
        """float[2,64] x -> float[2,64] y
        s = ReduceSumSquare<axes=[-1], keepdims=1>(x)
        m = Mul(s, share)
        e = Add(m, eps)
        r = Sqrt(e)
        y = Div(x, r)""",
        {"x": SPREAD},
        {"share": 1 / 64, "eps": 1e-6},
    ),
    Case(
        "RMS norm as Pow, ReduceMean, Sqrt, Div",
        """float[2,64] x -> float[2,64] y
        p = Pow(x, two)
        v = ReduceMean<axes=[-1], keepdims=1>(p)
        ve = Add(v, eps)
        sd = Sqrt(ve)
        n = Div(x, sd)
        y = Mul(n, g)""",
        {"x": SPREAD},
        {"two": 2.0, "eps": 1e-6, "g": uniform(64)},
    ),
    Case(
        "RMS norm as Llama exports it: Mul, ReduceMean, Sqrt, Reciprocal, Mul",
        """float[2,64] x -> float[2,64] y
        p = Mul(x, x)
        v = ReduceMean(p, ax)
        ve = Add(v, eps)
        sd = Sqrt(ve)
        r = Reciprocal(sd)
        n = Mul(x, r)
        y = Mul(g, n)""",
        {"x": SPREAD},
        {"ax": np.int64([-1]), "eps": 1e-6, "g": uniform(64)},
        opset=18,
    ),
    Case(
        "RMS norm through ReduceL2",
        """float[2,64] x -> float[2,64] y
        n = ReduceL2<axes=[-1], keepdims=1>(x)
        m = Mul(n, root)
        c = Max(m, eps)
        y = Div(x, c)""",
        {"x": SPREAD},
        {"root": 0.125, "eps": 1e-8},
    ),
    Case(
        "RMS norm through Einsum",
        """float[2,64] x -> float[2,64] y
        s = Einsum<equation="bi,bi->b">(x, x)
        u = Unsqueeze(s, ax)
        m = Mul(u, share)
        e = Add(m, eps)
        r = Sqrt(e)
        y = Div(x, r)""",
        {"x": SPREAD},
        {"ax": np.int64([-1]), "share": 1 / 64, "eps": 1e-6},
        blind=False,
    ),
    Case(
        "RMSNormalization, fused",
        "float[2,64] x -> float[2,64] y\n y = RMSNormalization<axis=-1, epsilon=1e-6>(x, g)",
        {"x": SPREAD},
        {"g": uniform(64)},
        opset=23,
    ),
    Case(
        "LayerNormalization, fused, with a mean and a deviation as outputs",
        "float[2,64] x -> float[2,64] y, float[2,1] m, float[2,1] d\n y, m, d = LayerNormalization<axis=-1>(x, g, b)",
        {"x": SPREAD},
        {"g": uniform(64), "b": uniform(64)},
        drawn=False,
    ),
    Case(
        "GroupNorm as Reshape, InstanceNormalization, Reshape",
        """float[1,8,16,16] x -> float[1,8,16,16] y
        r = Reshape(x, flat)
        n = InstanceNormalization<epsilon=1e-5>(r, s, b)
        back = Reshape(n, full)
        m = Mul(back, g)
        y = Add(m, h)""",
        {"x": normal(1, 8, 16, 16, scale=400)},
        {
            "flat": np.int64([0, 2, -1]),
            "full": np.int64([1, 8, 16, 16]),
            "s": np.ones(2, np.float32),
            "b": np.zeros(2, np.float32),
            "g": uniform(8, 1, 1),
            "h": uniform(8, 1, 1),
        },
    ),
    Case(
        "GroupNormalization of opset 21",
        "float[1,8,16,16] x -> float[1,8,16,16] y\n y = GroupNormalization<num_groups=2, epsilon=1e-5>(x, s, b)",
        {"x": normal(1, 8, 16, 16, scale=400)},
        {"s": uniform(8), "b": uniform(8)},
        opset=21,
    ),
    Case(
        "InstanceNormalization of a checkerboard of ±512",
        "float[1,2,32,32] x -> float[1,2,32,32] y\n y = InstanceNormalization<epsilon=1e-5>(x, s, b)",
        {"x": np.where(np.indices((1, 2, 32, 32)).sum(0) % 2 == 0, 512, -512).astype(np.float32)},
        {"s": np.ones(2, np.float32), "b": np.zeros(2, np.float32)},
    ),
    Case(
        "MeanVarianceNormalization of large numbers",
        "float[1,2,16,16] x -> float[1,2,16,16] y\n y = MeanVarianceNormalization<axes=[0, 2, 3]>(x)",
        {"x": normal(1, 2, 16, 16, scale=500)},
    ),
    Case(
        "LRN of large numbers",
        "float[1,8,4,4] x -> float[1,8,4,4] y\n y = LRN<size=5, alpha=1.0, beta=0.75, bias=1.0>(x)",
        {"x": normal(1, 8, 4, 4, scale=500)},
    ),
    Case(
        "LpNormalization of large numbers",
        "float[2,128] x -> float[2,128] y\n y = LpNormalization<axis=-1, p=2>(x)",
        {"x": normal(2, 128, scale=400)},
    ),
    Case(
        "L2 norm by ReduceL2 and Div",
        "float[2,128] x -> float[2,128] y\n n = ReduceL2<axes=[-1], keepdims=1>(x)\n y = Div(x, n)",
        {"x": normal(2, 128, scale=400)},
    ),
    Case(
        "L2 norm as torch.nn.functional.normalize: ReduceL2, Clip, Expand, Div",
        """float[2,128] x -> float[2,128] y
        n = ReduceL2<axes=[-1], keepdims=1>(x)
        c = Clip(n, eps)
        s = Shape(x)
        e = Expand(c, s)
        y = Div(x, e)""",
        {"x": normal(2, 128, scale=400)},
        {"eps": 1e-12},
    ),
    Case(
        "L2 norm by ReduceSumSquare, Sqrt, Max with an epsilon",
        """float[2,128] x -> float[2,128] y
        q = ReduceSumSquare<axes=[-1], keepdims=1>(x)
        n = Sqrt(q)
        c = Max(n, eps)
        y = Div(x, c)""",
        {"x": normal(2, 128, scale=400)},
        {"eps": 1e-12},
    ),
    Case(
        "L2 norm by Mul, ReduceSum, Pow",
        """float[2,128] x -> float[2,128] y
        q = Mul(x, x)
        s = ReduceSum(q, ax)
        e = Add(s, eps)
        n = Pow(e, mhalf)
        y = Mul(x, n)""",
        {"x": normal(2, 128, scale=400)},
        {"ax": np.int64([-1]), "eps": 1e-10, "mhalf": -0.5},
    ),
    Case(
        "L2 norm of a row of zeros",
        "float[2,8] x -> float[2,8] y\n n = ReduceL2<axes=[-1], keepdims=1>(x)\n c = Max(n, eps)\n y = Div(x, c)",
        {"x": np.concatenate([np.zeros((1, 8), np.float32), normal(1, 8)])},
        {"eps": 1e-12},
    ),
    Case(
        "cosine similarity with an epsilon of 1e-8",
        """float[2,64] a, float[2,64] b -> float[2] y
        p = Mul(a, b)
        dot = ReduceSum<keepdims=0>(p, ax)
        na = ReduceL2<axes=[-1], keepdims=0>(a)
        nb = ReduceL2<axes=[-1], keepdims=0>(b)
        n = Mul(na, nb)
        c = Max(n, eps)
        y = Div(dot, c)""",
        {"a": normal(2, 64, scale=300), "b": normal(2, 64, scale=300) + 100},
        {"ax": np.int64([-1]), "eps": 1e-8},
    ),
    Case(
        "pairwise distances by |a|² + |b|² - 2ab",
        """float[4,16] a, float[5,16] b -> float[4,5] y
        aa = Mul(a, a)
        na = ReduceSum(aa, ax)
        bb = Mul(b, b)
        nb = ReduceSum(bb, ax)
        nbt = Transpose(nb)
        bt = Transpose(b)
        ab = MatMul(a, bt)
        ab2 = Mul(ab, two)
        s = Add(na, nbt)
        q = Sub(s, ab2)
        r = Relu(q)
        y = Sqrt(r)""",
        {"a": normal(4, 16, scale=100), "b": normal(5, 16, scale=100, seed=1)},
        {"ax": np.int64([-1]), "two": 2.0},
        blind=False,
    ),
    Case(
        "sum over a long axis",
        "float[1,4096] x -> float[1,1] y\n y = ReduceSum<keepdims=1>(x, ax)",
        {"x": np.full((1, 4096), 32, np.float32)},
        {"ax": np.int64([-1])},
    ),
    Case(
        "sum over 1536 features of 50",
        "float[1,1536] x -> float[1] y\n y = ReduceSum<keepdims=0>(x, ax)",
        {"x": np.full((1, 1536), 50, np.float32)},
        {"ax": np.int64([1])},
    ),
    Case(
        "sum over an axis of unknown length",
        "float[1,N] x -> float[1,1] y\n y = ReduceSum<axes=[1], keepdims=1>(x)",
        {"x": np.full((1, 5000), 20, np.float32)},
        opset=11,
    ),
    Case(
        "sum of absolute numbers",
        "float[1,4096] x -> float[1] y\n y = ReduceL1<axes=[1], keepdims=0>(x)",
        {"x": normal(1, 4096, scale=40)},
    ),
    Case(
        "sum that stays small with signs, and overflows on the way",
        "float[1,4096] x -> float[1,1] y\n y = ReduceSum<keepdims=1>(x, ax)",
        {"x": np.concatenate([np.full((1, 2048), 60), np.full((1, 2048), -59.5)], 1).astype(np.float32)},
        {"ax": np.int64([-1])},
    ),
    Case(
        "sum as a product with ones",
        "float[1,4096] x -> float[1,1] y\n y = MatMul(x, ones)",
        {"x": np.full((1, 4096), 32, np.float32)},
        {"ones": np.ones((4096, 1), np.float32)},
        blind=False,
    ),
    Case(
        "mean over a large map: the sum inside overflows",
        "float[1,2,512,512] x -> float[1,2,1,1] y\n y = ReduceMean<axes=[2, 3], keepdims=1>(x)",
        {"x": uniform(1, 2, 512, 512)},
    ),
    Case(
        "global average pool over a large map",
        "float[1,2,400,400] x -> float[1,2,1,1] y\n y = GlobalAveragePool(x)",
        {"x": uniform(1, 2, 400, 400)},
    ),
    Case(
        "average pool with a large window",
        "float[1,1,160,160] x -> float[1,1,2,2] y\n y = AveragePool<kernel_shape=[80, 80], strides=[80, 80]>(x)",
        {"x": uniform(1, 1, 160, 160, high=30)},
    ),
    Case(
        "mean of all elements, axes left out",
        "float[4,20000] x -> float y\n y = ReduceMean<keepdims=0>(x)",
        {"x": uniform(4, 20000)},
    ),
    Case(
        "softplus as Log(1 + Exp(x))",
        "float[1,4] x -> float[1,4] y\n e = Exp(x)\n s = Add(e, one)\n y = Log(s)",
        {"x": [[1.0, 8, 11.5, 20]]},
        {"one": 1.0},
    ),
    Case(
        "softplus, fused",
        "float[1,4] x -> float[1,4] y\n y = Softplus(x)",
        {"x": [[-30.0, 8, 11.5, 200]]},
    ),
    Case(
        "Mish as x · tanh(softplus(x))",
        "float[1,4] x -> float[1,4] y\n s = Softplus(x)\n t = Tanh(s)\n y = Mul(x, t)",
        {"x": [[-3.0, 8, 11.5, 40]]},
    ),
    Case(
        "Mish of opset 18",
        "float[1,4] x -> float[1,4] y\n y = Mish(x)",
        {"x": [[-3.0, 8, 11.5, 40]]},
        opset=18,
    ),
    Case(
        "SiLU as x / (1 + exp(-x))",
        "float[1,4] x -> float[1,4] y\n n = Neg(x)\n e = Exp(n)\n d = Add(e, one)\n y = Div(x, d)",
        {"x": [[-15.0, -2, 11.5, 40]]},
        {"one": 1.0},
    ),
    Case(
        "GELU by tanh: the cube overflows",
        """float[1,4] x -> float[1,4] y
        c = Pow(x, three)
        a = Mul(c, k)
        b = Add(x, a)
        m = Mul(b, r)
        t = Tanh(m)
        p = Add(t, one)
        h = Mul(x, p)
        y = Mul(h, half)""",
        {"x": [[-50.0, 0.5, 45.0, 100.0]]},
        {"three": 3.0, "k": 0.044715, "r": 0.7978846, "one": 1.0, "half": 0.5},
    ),
    Case(
        "log of the sum of exponentials, fused",
        "float[2,8] x -> float[2,1] y\n y = ReduceLogSumExp<axes=[-1], keepdims=1>(x)",
        {"x": normal(2, 8, scale=30) + 20},
    ),
    Case(
        "log of the sum of exponentials in single operators, not shifted",
        "float[2,8] x -> float[2,1] y\n e = Exp(x)\n s = ReduceSum<keepdims=1>(e, ax)\n y = Log(s)",
        {"x": uniform(2, 8, low=5, high=15)},
        {"ax": np.int64([-1])},
    ),
    Case(
        "log of the sum of exponentials, shifted by the maximum",
        """float[2,8] x -> float[2,1] y
        m = ReduceMax<axes=[-1], keepdims=1>(x)
        d = Sub(x, m)
        e = Exp(d)
        s = ReduceSum<keepdims=1>(e, ax)
        l = Log(s)
        y = Add(l, m)""",
        {"x": normal(2, 8, scale=30) + 20},
        {"ax": np.int64([-1])},
    ),
    Case(
        "ReduceLogSum of large numbers",
        "float[2,64] x -> float[2,1] y\n y = ReduceLogSum<axes=[-1], keepdims=1>(x)",
        {"x": uniform(2, 64, low=1000, high=3000)},
    ),
    Case(
        "softmax in single operators, shifted",
        """float[2,8] x -> float[2,8] y
        m = ReduceMax<axes=[-1], keepdims=1>(x)
        d = Sub(x, m)
        e = Exp(d)
        s = ReduceSum<keepdims=1>(e, ax)
        y = Div(e, s)""",
        {"x": normal(2, 8, scale=40)},
        {"ax": np.int64([-1])},
    ),
    Case(
        "softmax in single operators, not shifted",
        "float[2,8] x -> float[2,8] y\n e = Exp(x)\n s = ReduceSum<keepdims=1>(e, ax)\n y = Div(e, s)",
        {"x": uniform(2, 8, low=5, high=15)},
        {"ax": np.int64([-1])},
    ),
    Case(
        "attention scores scaled after the product",
        """float[1,8,64] q, float[1,64,8] k -> float[1,8,8] y
        s = MatMul(q, k)
        s2 = Mul(s, sc)
        y = Softmax<axis=-1>(s2)""",
        {"q": normal(1, 8, 64, scale=160, seed=4), "k": normal(1, 64, 8, scale=160, seed=5)},
        {"sc": 0.125},
        blind=False,
    ),
    Case(
        "attention scores divided after the product, soft-capped by tanh",
        """float[1,8,64] q, float[1,64,8] k -> float[1,8,8] y
        s = MatMul(q, k)
        s2 = Div(s, sc)
        c = Div(s2, cap)
        t = Tanh(c)
        u = Mul(t, cap)
        y = Softmax<axis=-1>(u)""",
        {"q": normal(1, 8, 64, scale=160, seed=4), "k": normal(1, 64, 8, scale=160, seed=5)},
        {"sc": 8.0, "cap": 50.0},
        blind=False,
    ),
    Case(
        "a gated unit whose product overflows before it is projected",
        """float[1,8] x -> float[1,4] y
        g = MatMul(x, w1)
        u = MatMul(x, w2)
        s = Sigmoid(g)
        a = Mul(g, s)
        m = Mul(a, u)
        y = MatMul(m, w3)""",
        {"x": normal(1, 8, scale=20)},
        {"w1": normal(8, 16, scale=20), "w2": normal(8, 16, scale=20, seed=1), "w3": normal(16, 4, scale=1e-3, seed=2)},
        blind=False,
    ),
    Case(
        "Attention of opset 23 with scores that overflow unless scaled first",
        "float[1,2,8,16] q, float[1,2,8,16] k, float[1,2,8,16] v -> float[1,2,8,16] y\n y = Attention(q, k, v)",
        {
            "q": normal(1, 2, 8, 16, scale=150),
            "k": normal(1, 2, 8, 16, scale=150, seed=1),
            "v": normal(1, 2, 8, 16, seed=2),
        },
        opset=23,
        blind=False,
    ),
    Case(
        "a quantised accumulator comes to float and is scaled later",
        """uint8[1,64] q -> float[1,4] y
        i = MatMulInteger(q, w, zq)
        f = Cast<to=1>(i)
        m = Mul(f, s)
        y = Add(m, b)""",
        {"q": np.random.default_rng(0).integers(0, 255, (1, 64)).astype(np.uint8)},
        {
            "w": np.random.default_rng(1).integers(-127, 127, (64, 4)).astype(np.int8),
            "zq": np.uint8(128),
            "s": 1e-4,
            "b": uniform(4),
        },
    ),
    Case(
        "a time stamp and its difference",
        "float[1,4] t, float[1,4] t0 -> float[1,4] y\n d = Sub(t, t0)\n y = Mul(d, k)",
        {"t": [[100003.5, 100007.25, 100001.0, 100000.5]], "t0": np.full((1, 4), 100000, np.float32)},
        {"k": 0.5},
        blind=False,
        drawn=False,
    ),
    Case(
        "exponential and its inverse scale",
        "float[1,4] x -> float[1,4] y\n e = Exp(x)\n y = Mul(e, k)",
        {"x": [[1.0, 5, 12, 14]]},
        {"k": 1e-6},
    ),
    Case(
        "a square and its root far apart",
        """float[1,64] x -> float[1,1] y
        q = Mul(x, x)
        r = Reshape(q, shape)
        s = ReduceSum<keepdims=1>(r, ax)
        y = Sqrt(s)""",
        {"x": normal(1, 64, scale=300)},
        {"shape": np.int64([1, 64]), "ax": np.int64([1])},
    ),
    Case(
        "a power beyond the square",
        "float[1,4] x -> float[1,4] y\n p = Pow(x, four)\n y = Pow(p, quarter)",
        {"x": [[1.0, 16, 30, 100]]},
        {"four": 4.0, "quarter": 0.25},
    ),
    Case(
        "a product of many factors",
        "float[1,8] x -> float[1,1] y\n y = ReduceProd<axes=[1], keepdims=1>(x)",
        {"x": [[9.0, 8, 7, 6, 5, 4, 3, 2]]},
    ),
    Case(
        "Cosh and Sinh",
        "float[4] x -> float[4] y, float[4] z\n c = Cosh(x)\n y = Log(c)\n s = Sinh(x)\n z = Asinh(s)",
        {"x": [1.0, 5, 13, 20]},
    ),
    Case(
        "a chain of gains that cancel",
        "float[4] x -> float[4] y\n a = Mul(x, up)\n b = Mul(a, up)\n c = Mul(b, down)\n y = Mul(c, down)",
        {"x": [1.0, 5, 13, 20]},
        {"up": 1000.0, "down": 0.001},
    ),
]
