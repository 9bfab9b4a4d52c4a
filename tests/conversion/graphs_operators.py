"""Operators with type rules of their own; Casts, doubles, strings; function-bodied operators."""

import numpy as np

from tests.conversion.graphs import Case, normal, tensor, uniform

FLAT = "float[2,3] x -> float[2,3] y"
X = {"x": uniform(2, 3, low=-1)}
IMAGE = {"x": uniform(1, 2, 8, 8, low=-1)}
INTS = {"i": np.int64([1, 2, 3]), "x": np.float32([0.5, 0.25, 1])}


def unary(op, attributes="", *, opset=17, feed=None, **options):
    return Case(
        f"{op}{attributes} at opset {opset}",
        f"{FLAT}\n y = {op}{attributes}(x)",
        feed or X,
        opset=opset,
        **options,
    )


def image(name, body, weights=None, *, outputs="float[1,C,H,W] y", **options):
    return Case(name, f"float[1,2,8,8] x -> {outputs}\n {body}", IMAGE, weights or {}, **options)


POINTWISE = """Relu Sigmoid Tanh Softplus Softsign Elu Selu Celu LeakyRelu HardSigmoid ThresholdedRelu Erf Exp Abs Neg
 Sin Cos Atan Sinh Cosh Asinh Identity Sign Floor Ceil Round HardSwish""".split()


def elementwise():
    body = "\n".join(f" y{i} = {op}(x)" for i, op in enumerate(POINTWISE))
    outputs = ", ".join(f"float[2,3] y{i}" for i in range(len(POINTWISE)))
    for opset in (14, 17, 22):
        yield Case(f"pointwise operators at opset {opset}", f"float[2,3] x -> {outputs}\n{body}", X, opset=opset)


def result_types():
    """A5: operators whose result has the type of an input, unless an attribute says otherwise."""
    weights, feed = {"w": normal(8, 4)}, {"x": normal(4, 8)}
    flag = {**feed, "c": np.array(True)}
    yield Case(
        "EyeLike of an input as an output",
        "float[4,8] x -> float[4,8] e, float[4,4] y\n e = EyeLike(x)\n y = MatMul(x, w)",
        feed,
        weights,
        opset=18,
        low=("y",),
    )
    yield Case(
        "EyeLike of a product",
        "float[4,8] x -> float[4,4] e, float[4,4] y\n y = MatMul(x, w)\n e = EyeLike(y)",
        feed,
        weights,
    )
    for op in ("RandomNormalLike", "RandomUniformLike", "Bernoulli"):
        yield Case(
            f"{op} of a product",
            f"""float[4,8] x -> float[4,4] y, int64[2] s
            y = MatMul(x, w)
            p = Sigmoid(y)
            r = {op}(p)
            q = Relu(r)
            s = Shape(q)""",
            feed,
            weights,
        )
    yield Case(
        "EyeLike in a branch",
        """float[4,8] x, bool c -> float[4,4] y
        m = MatMul(x, w)
        y = If (c) <
            then_branch = th () => (float[4,4] a) { e = EyeLike(m)  a = MatMul(m, e) },
            else_branch = el () => (float[4,4] b) { b = RandomUniformLike<low = 0.0, high = 0.0>(m) }>""",
        flag,
        weights,
    )


CASES = [
    *result_types(),
    *elementwise(),
    unary("Gelu", '<approximate="tanh">', opset=20),
    unary("Gelu", opset=20),
    unary("Swish", "<alpha=1.702>", opset=24),
    unary("Mish", opset=22),
    unary("Celu", "<alpha=2.0>", opset=12),
    unary("Hardmax", opset=13),
    unary("MeanVarianceNormalization", "<axes=[1]>", opset=13),
    unary("Dropout", "<ratio=0.5>", opset=9),
    unary("LogSoftmax", "<axis=0>", opset=11),
    unary("Softmax", opset=9),
    Case(
        "PRelu with a slope per channel",
        f"{FLAT}\n y = PRelu(x, s)",
        X,
        {"s": np.float32([0.1, 0.2, 0.3])},
    ),
    Case("a Cast in the middle", "int64[3] i, float[3] x -> float[3] y\n f = Cast<to=1>(i)\n y = Mul(f, x)", INTS),
    Case(
        "CastLike to the model's floats",
        "int64[3] i, float[3] x -> float[3] y\n f = CastLike(i, x)\n y = Mul(f, x)",
        INTS,
    ),
    Case(
        "CastLike to integers and back",
        """int64[3] i, float[3] x -> float[3] y
        k = Mul(x, two)
        f = CastLike(k, i)
        g = CastLike(f, k)
        y = Add(g, x)""",
        INTS,
        {"two": 2.0},
    ),
    Case(
        "an island of double",
        "float[3] x -> float[3] y\n d = Cast<to=11>(x)\n d2 = Add(d, k)\n y0 = Cast<to=1>(d2)\n y = Relu(y0)",
        {"x": np.float32([0.5, 0.25, 1])},
        {"k": np.float64([1e-9, 1.0, 2.0])},
    ),
    Case(
        "an island of double around a matrix product",
        "float[1,3] x -> float[1,2] y\n d = Cast<to=11>(x)\n m = MatMul(d, w)\n f = Cast<to=1>(m)\n y = MatMul(f, v)",
        {"x": normal(1, 3)},
        {"w": normal(3, 2).astype(np.float64), "v": normal(2, 2)},
        low=("y",),
    ),
    Case(
        "double throughout",
        "double[3] x -> double[3] y\n y = Mul(x, k)",
        {"x": np.float64([1, 2, 3])},
        {"k": np.array(1e-300)},
    ),
    Case(
        "a chain of Casts over integers, doubles and bools",
        """float[3] x -> float[3] y
        a = Cast<to=11>(x)
        b = Cast<to=6>(a)
        c = Cast<to=9>(b)
        d = Cast<to=1>(c)
        y = Mul(d, x)""",
        {"x": np.float32([0.5, 2.5, 0])},
    ),
    Case(
        "Cast to string",
        "float[3] x -> string[3] y\n r = Relu(x)\n y = Cast<to=8>(r)",
        {"x": np.float32([0.5, 2.5, 0])},
        formats=("fp16",),
    ),
    Case(
        "OneHot: the values decide the type",
        "int64[3] i -> float[3,2] y\n o = OneHot<axis=-1>(i, d, v)\n y = MatMul(o, w)",
        {"i": np.int64([0, 3, 4])},
        {"d": np.int64(5), "v": np.float32([0, 1]), "w": uniform(5, 2)},
        low=("y",),
    ),
    Case(
        "OneHot with float indices and depth",
        "float[3] i -> float[3,2] y\n o = OneHot<axis=-1>(i, d, v)\n y = MatMul(o, w)",
        {"i": np.float32([0, 3, 2999])},
        {"d": 3000.0, "v": np.float32([0, 1]), "w": uniform(3000, 2)},
        low=("y",),
        drawn=False,
    ),
    Case(
        "Einsum",
        'float[1,2,3] x -> float[1,2,4] y\n y = Einsum<equation="bij,jk->bik">(x, w)',
        {"x": uniform(1, 2, 3)},
        {"w": uniform(3, 4)},
        low=("y",),
        formats=("fp16",),
    ),
    Case(
        "Einsum, which has no BF16",
        'float[1,2,3] x -> float[1,2,4] y\n y = Einsum<equation="bij,jk->bik">(x, w)',
        {"x": uniform(1, 2, 3)},
        {"w": uniform(3, 4)},
        formats=("bf16",),
    ),
    Case(
        "Einsum of three operands with an ellipsis",
        'float[2,2,3] x -> float[2,2,2] y\n y = Einsum<equation="...ij,jk,kl->...il">(x, w, v)',
        {"x": uniform(2, 2, 3)},
        {"w": uniform(3, 4), "v": uniform(4, 2)},
        low=("y",),
        formats=("fp16",),
    ),
    Case(
        "Pow with an integer exponent",
        f"{FLAT}\n a = Pow(x, two)\n y = Pow(a, e)",
        X,
        {"two": np.int64(2), "e": np.int32(1)},
    ),
    Case(
        "Pow of integers by floats",
        "int64[3] i, float[3] x -> int64[3] y, float[3] z\n y = Pow(i, e)\n z = Mul(x, e)",
        INTS,
        {"e": 2.0},
    ),
    Case(
        "Where, Max, Min, Sum, Mean with many operands",
        """float[2,3] x -> float[2,3] y
        a = Max(x, k, h)
        b = Min(a, x, one)
        c = Sum(a, b, x)
        d = Mean(c, x, k)
        g = Greater(d, k)
        y = Where(g, d, h)""",
        X,
        {"k": 0.1, "h": 0.3, "one": 1.0},
    ),
    Case(
        "MaxPool with indices, MaxUnpool",
        """float[1,2,8,8] x -> float[1,2,8,8] y
        p, i = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x)
        y = MaxUnpool<kernel_shape=[2, 2], strides=[2, 2]>(p, i)""",
        IMAGE,
        drawn=False,
    ),
    image(
        "Conv, ConvTranspose, pooling and a global pool",
        """a = Conv<pads=[1, 1, 1, 1]>(x, w, b)
        t = ConvTranspose<strides=[2, 2]>(a, wt)
        p = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(t)
        q = LpPool<kernel_shape=[2, 2], strides=[2, 2], p=2>(p)
        y = GlobalMaxPool(q)""",
        {"w": normal(4, 2, 3, 3), "b": normal(4), "wt": normal(4, 2, 2, 2)},
        low=("a",),
        outputs="float[1,2,1,1] y",
    ),
    image("Conv at opset 11", "y = Conv<pads=[1, 1, 1, 1]>(x, w)", {"w": normal(4, 2, 3, 3)}, low=("y",), opset=11),
    Case(
        "Conv in one dimension at opset 9",
        "float[1,2,8] x -> float[1,4,8] y\n y = Conv<pads=[1, 1]>(x, w)",
        {"x": normal(1, 2, 8)},
        {"w": normal(4, 2, 3)},
        low=("y",),
        opset=9,
    ),
    Case(
        "Conv with a weight that is computed",
        "float[1,2,8,8] x -> float[1,2,8,8] y\n w2 = Mul(w, g)\n y = Conv<pads=[1, 1, 1, 1]>(x, w2)",
        IMAGE,
        {"w": normal(2, 2, 3, 3), "g": 0.5},
        low=("y",),
    ),
    Case(
        "Gemm with transposed operands and no bias, opset 11",
        "float[3,2] x -> float[2,4] y\n y = Gemm<transA=1, transB=1, alpha=0.5>(x, w)",
        {"x": normal(3, 2)},
        {"w": normal(4, 3)},
        low=("y",),
        opset=11,
    ),
    image(
        "DeformConv",
        "o = Conv<pads=[1, 1, 1, 1]>(x, wo)\n y = DeformConv<pads=[1, 1, 1, 1], kernel_shape=[3, 3]>(x, w, o)",
        {"w": normal(2, 2, 3, 3), "wo": normal(18, 2, 3, 3, scale=0.01)},
        opset=19,
    ),
    image(
        "DepthToSpace and SpaceToDepth",
        "a = SpaceToDepth<blocksize=2>(x)\n b = Relu(a)\n y = DepthToSpace<blocksize=2>(b)",
    ),
    image("CenterCropPad", "y = CenterCropPad<axes=[2, 3]>(x, size)", {"size": np.int64([4, 10])}, opset=18),
    Case(
        "Col2Im",
        "float[1,8,9] x -> float[1,2,4,4] y\n r = Relu(x)\n y = Col2Im(r, size, block)",
        {"x": normal(1, 8, 9)},
        {"size": np.int64([4, 4]), "block": np.int64([2, 2])},
        opset=18,
    ),
    Case(
        "ReverseSequence, Trilu, Tile, Expand, Compress",
        """float[2,3] x, int64[2] n -> float[K,6] y
        a = ReverseSequence<batch_axis=0, time_axis=1>(x, n)
        b = Trilu(a)
        c = Tile(b, rep)
        d = Expand(c, sh)
        y = Compress<axis=0>(d, pick)""",
        {**X, "n": np.int64([3, 2])},
        {"rep": np.int64([1, 2]), "sh": np.int64([2, 6]), "pick": np.array([False, True])},
    ),
    Case(
        "Gather, GatherElements, GatherND, Scatter of opset 9, ScatterElements with add",
        """float[2,3] x -> float[2,3] y, float[2] g
        a = Gather<axis=1>(x, i)
        b = GatherElements<axis=1>(a, e)
        g = GatherND(b, nd)
        c = ScatterElements<axis=1, reduction="add">(x, e, b)
        y = Relu(c)""",
        X,
        {"i": np.int64([2, 1, 0]), "e": np.int64([[0, 1, 2], [2, 0, 1]]), "nd": np.int64([[0, 1], [1, 2]])},
        opset=18,
    ),
    Case(
        "Scatter of opset 9",
        "float[2,3] x -> float[2,3] y\n y = Scatter<axis=1>(x, e, v)",
        X,
        {"e": np.int64([[0], [2]]), "v": np.float32([[9], [8]])},
        opset=9,
    ),
    Case(
        "ArgMax, ArgMin, Size, Shape, IsNaN leave floats behind",
        """float[2,3] x -> int64[2] a, int64[2] b, int64 c, bool[2,3] d
        r = Relu(x)
        a = ArgMax<axis=1, keepdims=0>(r)
        b = ArgMin<axis=1, keepdims=0>(r)
        c = Size(r)
        d = IsNaN(r)""",
        X,
    ),
    Case(
        "Det and the inverse of its logarithm",
        "float[2,2] x -> float y\n d = Det(x)\n y = Add(d, one)",
        {"x": np.float32([[2, 1], [1, 3]])},
        {"one": 1.0},
    ),
    Case(
        "SoftmaxCrossEntropyLoss with weights, log probabilities as a second output",
        """float[3,4] x, int64[3] t -> float y, float[3,4] l
        y, l = SoftmaxCrossEntropyLoss<reduction="mean">(x, t, w)""",
        {"x": normal(3, 4), "t": np.int64([0, 3, 1])},
        {"w": uniform(4, low=0.5)},
        opset=13,
    ),
    Case(
        "NegativeLogLikelihoodLoss",
        "float[3,4] x, int64[3] t -> float y\n l = LogSoftmax<axis=1>(x)\n y = NegativeLogLikelihoodLoss(l, t)",
        {"x": normal(3, 4), "t": np.int64([0, 3, 1])},
        opset=13,
    ),
    Case(
        "a Hann window as a float",
        "float[8] x -> float[8] y\n w = HannWindow<output_datatype=1>(n)\n y = Mul(x, w)",
        {"x": normal(8)},
        {"n": np.int64(8)},
    ),
    Case(
        "DFT, then magnitudes",
        """float[1,16,1] x -> float[1,16] y
        d = DFT<axis=1>(x)
        q = Mul(d, d)
        s = ReduceSum<keepdims=0>(q, ax)
        y = Sqrt(s)""",
        {"x": normal(1, 16, 1)},
        {"ax": np.int64([2])},
        blind=False,
    ),
    Case(
        "STFT with a window",
        "float[1,64] x -> float[1,A,B,2] y\n y = STFT(x, step, w)",
        {"x": normal(1, 64)},
        {"step": np.int64(8), "w": uniform(16)},
    ),
    Case(
        "a gated unit: MatMul, Split, Sigmoid",
        """float[1,3] x -> float[1,2] y
        g = MatMul(x, w)
        a, b = Split<axis=1>(g, two)
        s = Sigmoid(a)
        y = Mul(s, b)""",
        {"x": normal(1, 3)},
        {"w": normal(3, 4), "two": np.int64([2, 2])},
        low=("g",),
    ),
    Case(
        "Attention with a bool mask",
        """float[1,2,4,8] q, float[1,2,4,8] k, float[1,2,4,8] v, bool[4,4] m -> float[1,2,4,8] y
        y = Attention(q, k, v, m)""",
        {
            "q": normal(1, 2, 4, 8),
            "k": normal(1, 2, 4, 8, seed=1),
            "v": normal(1, 2, 4, 8, seed=2),
            "m": np.tril(np.ones((4, 4), bool)),
        },
        opset=23,
        low=("y",),
    ),
    Case(
        "Attention with a float mask, past and present",
        """float[1,2,4,8] q, float[1,2,4,8] k, float[1,2,4,8] v, float[4,6] m, float[1,2,2,8] pk,
            float[1,2,2,8] pv -> float[1,2,4,8] y, float[1,2,6,8] nk, float[1,2,6,8] nv
        y, nk, nv = Attention<is_causal=1>(q, k, v, m, pk, pv)""",
        {
            "q": normal(1, 2, 4, 8),
            "k": normal(1, 2, 4, 8, seed=1),
            "v": normal(1, 2, 4, 8, seed=2),
            "m": np.zeros((4, 6), np.float32),
            "pk": normal(1, 2, 2, 8, seed=3),
            "pv": normal(1, 2, 2, 8, seed=4),
        },
        opset=23,
        low=("y",),
    ),
    Case(
        "RotaryEmbedding of opset 23",
        "float[1,2,4,8] x, int64[1,4] p -> float[1,2,4,8] y\n y = RotaryEmbedding(x, c, s, p)",
        {"x": normal(1, 2, 4, 8), "p": np.int64([[0, 1, 2, 60]])},
        {
            "c": np.cos(np.arange(64)[:, None] * 0.5 ** np.arange(4)).astype(np.float32),
            "s": np.sin(np.arange(64)[:, None] * 0.5 ** np.arange(4)).astype(np.float32),
        },
        opset=23,
    ),
    Case(
        "TensorScatter into a cache",
        "float[1,2,4] u, int64[1] at -> float[1,8,4] y\n r = Relu(u)\n y = TensorScatter<axis=1>(cache, r, at)",
        {"u": normal(1, 2, 4), "at": np.int64([3])},
        {"cache": normal(1, 8, 4)},
        opset=24,
    ),
    Case(
        "BitShift and integers beside floats",
        """uint8[3] i, float[3] x -> float[3] y
        s = BitShift<direction="LEFT">(i, i)
        f = Cast<to=1>(s)
        y = Mul(x, f)""",
        {"i": np.uint8([1, 2, 3]), "x": INTS["x"]},
    ),
    Case(
        "a uint8 image",
        "uint8[1,3,4,4] img -> float[1,2,2,2] y\n f = Cast<to=1>(img)\n g = Mul(f, k)\n y = Conv(g, w)",
        {"img": np.random.default_rng(1).integers(0, 255, (1, 3, 4, 4)).astype(np.uint8)},
        {"k": 1 / 255, "w": normal(2, 3, 3, 3)},
        low=("y",),
    ),
    Case(
        "strings beside floats",
        "string[2] s, float[2] x -> string[2] t, float[2] y\n t = Identity(s)\n y = Relu(x)",
        {"s": np.array(["a", "b"], object), "x": np.float32([1, -1])},
        formats=("fp16",),
    ),
    Case(
        "strings looked up, embedded",
        "int64[2] i -> float[2,2] y\n e = Gather(t, i)\n y = MatMul(e, w)",
        {"i": np.int64([0, 2])},
        {"t": normal(3, 2), "w": normal(2, 2), "names": tensor("names", np.array([b"x", b"y"], object))},
        low=("y",),
    ),
    Case(
        "an optional tensor made and unpacked",
        "float[2] x -> float[2] y\n r = Relu(x)\n o = Optional(r)\n g = OptionalGetElement(o)\n y = Mul(g, k)",
        {"x": np.float32([1, -1])},
        {"k": 2.0},
        opset=18,
    ),
    Case("a model without any float", "int64[2] x -> int64[2] y\n y = Add(x, x)", {"x": np.int64([1, 2])}),
    Case(
        "ai.onnx.ml operators stay as they are",
        'float[2,3] x -> float[2,3] y\n r = Relu(x)\n n = ai.onnx.ml.Normalizer<norm="L2">(r)\n y = Mul(n, k)',
        X,
        {"k": 2.0},
        domains={"ai.onnx.ml": 3},
    ),
]
