"""Operand slots, optional slots and attributes that have types of their own, at every opset."""

import numpy as np

from tests.conversion.graphs import Case, normal, uniform

FLAT = "float[2,3] x -> float[2,3] y"
X = {"x": uniform(2, 3, low=-1)}
IMAGE = {"x": uniform(1, 2, 8, 8, low=-1)}
INTS = {"i": np.int64([1, 2, 3]), "x": np.float32([0.5, 0.25, 1])}


def image(name, body, weights=None, *, outputs="float[1,C,H,W] y", **options):
    return Case(name, f"float[1,2,8,8] x -> {outputs}\n {body}", IMAGE, weights or {}, **options)


CASES = [
    image(
        "Resize scales in a Constant node",
        'sc = Constant<value = float[4] {1, 1, 2, 2}>()\n y = Resize<mode="nearest">(x, "", sc)',
    ),
    image(
        "Resize scales in value_floats form",
        'sc = Constant<value_floats=[1.0, 1.0, 2.0, 2.0]>()\n y = Resize<mode="nearest">(x, "", sc)',
        opset=13,
    ),
    image(
        "Resize of opset 10, twice, without names",
        'a = Resize<mode="nearest">(x, sc)\n y = Resize<mode="nearest">(a, sc)',
        {"sc": np.float32([1, 1, 2, 2])},
        opset=10,
        named=False,
    ),
    image(
        "Resize of opset 11 with an empty roi and scales, sizes given",
        'y = Resize<mode="linear">(x, roi, sc, sizes)',
        {"roi": np.zeros(0, np.float32), "sc": np.zeros(0, np.float32), "sizes": np.int64([1, 2, 16, 12])},
        opset=11,
    ),
    image(
        "Resize of opset 19 with antialias",
        'y = Resize<mode="linear", antialias=1>(x, "", sc)',
        {"sc": np.float32([1, 1, 0.5, 0.5])},
        opset=19,
    ),
    image(
        "Resize cubic, align corners",
        'y = Resize<mode="cubic", coordinate_transformation_mode="align_corners">(x, "", "", sizes)',
        {"sizes": np.int64([1, 2, 12, 13])},
        opset=13,
    ),
    image(
        "Upsample with scales as an input, opset 9",
        'y = Upsample<mode="nearest">(x, sc)',
        {"sc": np.float32([1, 1, 2, 2])},
        opset=9,
    ),
    image(
        "Upsample with scales as an attribute, opset 7",
        'y = Upsample<mode="nearest", scales=[1.0, 1.0, 2.0, 2.0]>(x)',
        opset=7,
    ),
    Case(
        "one constant feeds Resize scales and ordinary arithmetic",
        """float[1,4,2,2] x -> float[1,4,4,4] y
        kr = Reshape(k, rs)
        t = Mul(x, kr)
        y = Resize<mode="nearest">(t, "", k)""",
        {"x": uniform(1, 4, 2, 2)},
        {"k": np.float32([1, 1, 2, 2]), "rs": np.int64([1, 4, 1, 1])},
    ),
    Case(
        "TopK",
        "float[1,16] x -> float[1,3] y, int64[1,3] i\n r = Relu(x)\n y, i = TopK<axis=-1>(r, k)",
        {"x": np.random.default_rng(0).permutation(16)[None].astype(np.float32) / 16},
        {"k": np.int64([3])},
    ),
    Case(
        "TopK of opset 9, k as an attribute",
        "float[1,16] x -> float[1,3] y, int64[1,3] i\n r = Relu(x)\n y, i = TopK<axis=-1, k=3>(r)",
        {"x": np.random.default_rng(0).permutation(16)[None].astype(np.float32) / 16},
        opset=9,
    ),
    Case("Clip with an empty slot", f'{FLAT}\n y = Clip(x, "", hi)', X, {"hi": 0.5}),
    Case("Clip with bounds computed at run time", f"{FLAT}\n lo = Neg(b)\n y = Clip(x, lo, b)", X, {"b": 0.5}),
    Case(
        "Pad with an axes input and an empty value",
        'float[2,3] x -> float[2,5] y\n y = Pad(x, p, "", ax)',
        X,
        {"p": np.int64([1, 1]), "ax": np.int64([1])},
        opset=18,
    ),
    Case(
        "Pad, reflect",
        'float[2,3] x -> float[2,5] y\n y = Pad<mode="reflect">(x, p)',
        X,
        {"p": np.int64([0, 1, 0, 1])},
        opset=13,
    ),
    Case(
        "Slice, Squeeze, Unsqueeze, Split, ReduceSum with the attributes of opset 10",
        """float[2,3] x -> float[2,1] y, float[1,2] z
        a = Slice<axes=[1], starts=[0], ends=[2]>(x)
        u = Unsqueeze<axes=[0]>(a)
        p, q = Split<axis=1>(u)
        z0 = Squeeze<axes=[1]>(p)
        z = Mul(z0, k)
        y = ReduceSum<axes=[1], keepdims=1>(x)""",
        X,
        {"k": 2.0},
        opset=9,
    ),
    Case(
        "Split of opset 18 with num_outputs",
        f"{FLAT}\n a, b, c = Split<axis=1, num_outputs=3>(x)\n y = Concat<axis=1>(c, a, b)",
        X,
        opset=18,
    ),
    Case(
        "Dropout of opset 13 with ratio and training_mode, mask used",
        "float[2,3] x -> float[2,3] y, bool[2,3] m\n r = Relu(x)\n y, m = Dropout(r, ratio, train)",
        X,
        {"ratio": 0.1, "train": np.array(False)},
        opset=13,
    ),
    Case(
        "Dropout whose ratio is computed",
        "float[2,3] x -> float[2,3] y\n ra = Mul(ratio, half)\n y, m = Dropout(x, ra)",
        X,
        {"ratio": 0.1, "half": 0.5},
        opset=13,
    ),
    *(
        Case(
            f"BatchNormalization at opset {opset}",
            """float[1,2,4,4] x -> float[1,2,4,4] y
        c = Conv<pads=[1, 1, 1, 1]>(x, w)
        y = BatchNormalization<epsilon=1e-3>(c, s, b, m, v)""",
            {"x": normal(1, 2, 4, 4)},
            {
                "w": normal(2, 2, 3, 3),
                "s": uniform(2, low=0.5),
                "b": normal(2),
                "m": normal(2),
                "v": uniform(2, low=0.5),
            },
            opset=opset,
            low=("c",),
        )
        for opset in (7, 9, 14, 15, 22)
    ),
    Case(
        "BatchNormalization in training form, running statistics as outputs",
        """float[2,2,4,4] x -> float[2,2,4,4] y, float[2] rm, float[2] rv
        y, rm, rv = BatchNormalization<training_mode=1, momentum=0.9>(x, s, b, m, v)""",
        {"x": normal(2, 2, 4, 4)},
        {"s": uniform(2, low=0.5), "b": normal(2), "m": normal(2), "v": uniform(2, low=0.5)},
        opset=15,
    ),
    Case(
        "BatchNormalization whose parameters are computed",
        "float[1,2,4,4] x -> float[1,2,4,4] y\n s = Abs(s0)\n y = BatchNormalization(x, s, b, m, v)",
        {"x": normal(1, 2, 4, 4)},
        {"s0": normal(2), "b": normal(2), "m": normal(2), "v": uniform(2, low=0.5)},
    ),
    Case(
        "RandomNormalLike, RandomUniformLike without a dtype",
        """float[2,3] x -> float[2,3] y
        a = RandomNormalLike<scale=1e-20>(x)
        b = RandomUniformLike<low=0.0, high=1e-20>(x)
        c = Add(a, b)
        y = Add(x, c)""",
        X,
    ),
    Case(
        "RandomUniform with a dtype",
        "float[2,3] x -> float[2,3] y\n a = RandomUniform<dtype=1, shape=[2, 3], high=1e-20>()\n y = Add(x, a)",
        X,
    ),
    Case(
        "EyeLike with a dtype",
        "float[4,4] x -> float[4,4] y\n e = EyeLike<dtype=1>(x)\n y = MatMul(x, e)",
        {"x": uniform(4, 4)},
        low=("y",),
    ),
    Case(
        "EyeLike without a dtype",
        "float[4,4] x -> float[4,4] y\n r = Relu(x)\n e = EyeLike(r)\n y = MatMul(r, e)",
        {"x": uniform(4, 4)},
        low=("y",),
    ),
    Case(
        "Bernoulli of zeros and ones",
        "float[2,3] x -> float[2,3] y\n b = Bernoulli<dtype=1>(p)\n y = Mul(x, b)",
        X,
        {"p": np.float32([[1, 0, 1], [0, 0, 1]])},
        opset=15,
    ),
    Case(
        "Bernoulli without a dtype",
        "float[2,3] x, float[2,3] p -> float[2,3] y\n r = Relu(p)\n b = Bernoulli(r)\n y = Mul(x, b)",
        {**X, "p": np.float32([[1, 0, 1], [0, 0, 1]])},
        opset=15,
    ),
    Case(
        "Multinomial of a sure thing",
        "float[1,3] x -> int64[1,2] y\n l = Mul(x, k)\n y = Multinomial<dtype=7, sample_size=2>(l)",
        {"x": np.float32([[0, 50, 0]])},
        {"k": 2.0},
    ),
    Case(
        "ConstantOfShape with a value",
        f"{FLAT}\n s = Shape(x)\n c = ConstantOfShape<value = float[1] {{2.5}}>(s)\n y = Mul(x, c)",
        X,
    ),
    Case("ConstantOfShape without a value", f"{FLAT}\n s = Shape(x)\n c = ConstantOfShape(s)\n y = Add(x, c)", X),
    Case(
        "ConstantOfShape with an integer value, then cast",
        f"{FLAT}\n s = Shape(x)\n c = ConstantOfShape<value = int64[1] {{3}}>(s)\n f = Cast<to=1>(c)\n y = Add(x, f)",
        X,
    ),
    Case(
        "Constant in all its forms",
        """float[2,3] x -> float[2,3] y
        a = Constant<value_float=2.0>()
        b = Constant<value_floats=[1.0, 2.0, 3.0]>()
        c = Constant<value = float {0.5}>()
        d = Constant<value_int=1>()
        e = Constant<value_ints=[2, 3]>()
        x1 = Mul(x, a)
        x2 = Mul(x1, b)
        x3 = Mul(x2, c)
        g = Cast<to=1>(d)
        x4 = Add(x3, g)
        y = Reshape(x4, e)""",
        X,
    ),
]
