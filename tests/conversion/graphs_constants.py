"""Constants beyond the format: masks, sentinels, bounds, infinities, weights, attributes."""

import numpy as np
import onnx
from onnx import helper

from tests.conversion.graphs import Case, normal, uniform

LOWEST = float(np.finfo(np.float32).min)
SCORES = np.float32([[-20, 2, 3, 4], [-20, -30, -40, -17]])
SEEN = np.array([[1, 1, 0, 0], [0, 0, 0, 0]], bool)  # the second row is masked everywhere
PART = np.array([[1, 1, 0, 0], [0, 1, 0, 1]], bool)
SOFTMAX = "s = Add(x, b)\n y = Softmax<axis=-1>(s)"


def _masks():
    levels = {"-1e4": -1e4, "-65504": -65504.0, "-1e9": -1e9, "float-min": LOWEST, "-inf": -np.inf}
    for level, number in levels.items():
        for rows, mask in (("some rows", PART), ("a row masked everywhere", SEEN)):
            if level == "-inf" and mask is SEEN:
                continue  # NaN in FP32, too
            yield Case(
                f"Where-select of {level}, {rows}, added",
                f"float[2,4] x, bool[2,4] m -> float[2,4] y\n b = Where(m, z, neg)\n {SOFTMAX}",
                {"x": SCORES, "m": mask},
                {"z": 0.0, "neg": np.float32(number)},
            )
            yield Case(
                f"scores replaced by {level}, {rows}",
                "float[2,4] x, bool[2,4] m -> float[2,4] y\n s = Where(m, x, neg)\n y = Softmax<axis=-1>(s)",
                {"x": SCORES, "m": mask},
                {"neg": np.float32(number)},
            )
        if level != "-inf":
            for rows, mask in (("some rows", PART), ("a row masked everywhere", SEEN)):
                yield Case(
                    f"(1 - m) · {level}, {rows}",
                    f"float[2,4] x, float[2,4] m -> float[2,4] y\n o = Sub(one, m)\n b = Mul(o, neg)\n {SOFTMAX}",
                    {"x": SCORES, "m": mask.astype(np.float32)},
                    {"one": 1.0, "neg": np.float32(number)},
                )


CASES = [
    *_masks(),
    Case(
        "a 0/1 mask from integers, cast, inverted, scaled, as BERT does",
        """float[2,1,1,4] x, int64[2,4] m -> float[2,1,1,4] y
        u = Unsqueeze(m, ax)
        f = Cast<to=1>(u)
        o = Sub(one, f)
        b = Mul(o, neg)
        s = Add(x, b)
        y = Softmax<axis=-1>(s)""",
        {"x": SCORES.reshape(2, 1, 1, 4), "m": SEEN.astype(np.int64)},
        {"ax": np.int64([1, 2]), "one": 1.0, "neg": np.float32(LOWEST)},
    ),
    Case(
        "a causal mask and a padding mask are added up",
        """float[1,1,4,4] x, int64[1,4] m -> float[1,1,4,4] y
        u = Unsqueeze(m, ax)
        f = Cast<to=1>(u)
        o = Sub(one, f)
        pad = Mul(o, neg)
        both = Add(pad, causal)
        s = Add(x, both)
        y = Softmax<axis=-1>(s)""",
        {"x": normal(1, 1, 4, 4), "m": np.int64([[0, 1, 1, 0]])},
        {
            "ax": np.int64([1, 2]),
            "one": 1.0,
            "neg": np.float32(-1e9),
            "causal": np.triu(np.full((1, 1, 4, 4), -1e9, np.float32), 1),
        },
    ),
    Case(
        "two masks of float-min overflow to -inf in FP32 as well",
        """float[1,4,4] x, bool[1,4] m -> float[1,4,4] y
        pad = Where(m, z, neg)
        u = Unsqueeze(pad, ax)
        t = Add(x, causal)
        s = Add(t, u)
        y = Softmax<axis=-1>(s)""",
        {"x": normal(1, 4, 4), "m": np.array([[1, 1, 1, 0]], bool)},
        {
            "ax": np.int64([1]),
            "z": 0.0,
            "neg": np.float32(LOWEST),
            "causal": np.triu(np.full((1, 4, 4), LOWEST, np.float32), 1),
        },
    ),
    Case(
        "a stored causal mask sliced to the length and cast from bool",
        """float[1,4,4] x -> float[1,4,4] y
        b = Slice(tril, zero, four, axes)
        s = Where(b, x, neg)
        y = Softmax<axis=-1>(s)""",
        {"x": normal(1, 4, 4)},
        {
            "tril": np.tril(np.ones((1, 16, 16), bool)),
            "zero": np.int64([0, 0]),
            "four": np.int64([4, 4]),
            "axes": np.int64([1, 2]),
            "neg": np.float32(LOWEST),
        },
    ),
    Case(
        "a float causal mask of -1e9 sliced, expanded and added",
        """float[2,4,4] x -> float[2,4,4] y
        b = Slice(mask, zero, four, axes)
        e = Expand(b, shape)
        s = Add(x, e)
        y = Softmax<axis=-1>(s)""",
        {"x": normal(2, 4, 4)},
        {
            "mask": np.triu(np.full((1, 16, 16), -1e9, np.float32), 1),
            "zero": np.int64([0, 0]),
            "four": np.int64([4, 4]),
            "axes": np.int64([1, 2]),
            "shape": np.int64([2, 4, 4]),
        },
    ),
    Case(
        "a mask made by ConstantOfShape and Trilu",
        """float[1,4,4] x -> float[1,4,4] y
        sh = Shape(x)
        full = ConstantOfShape<value = float[1] {-1e9}>(sh)
        t = Trilu<upper=1>(full, k)
        s = Add(x, t)
        y = Softmax<axis=-1>(s)""",
        {"x": normal(1, 4, 4)},
        {"k": np.int64(1)},
    ),
    Case(
        "GPT-2: w·b - 1e4·(1 - b)",
        """float[1,4,4] x -> float[1,4,4] y
        wb = Mul(x, b)
        o = Sub(one, b)
        n = Mul(o, big)
        s = Sub(wb, n)
        y = Softmax<axis=-1>(s)""",
        {"x": normal(1, 4, 4)},
        {"b": np.tril(np.ones((1, 4, 4), np.float32)), "one": 1.0, "big": 1e4},
    ),
    Case(
        "the same with 1e10, and a sum",
        """float[1,4] x, float[1,4] m -> float[1,4] y
        o = Sub(m, one)
        n = Mul(o, big)
        y0 = Sum(x, n)
        y = Softmax<axis=-1>(y0)""",
        {"x": normal(1, 4), "m": [[1.0, 1, 0, 1]]},
        {"one": 1.0, "big": 1e10},
    ),
    Case(
        "an additive mask given as an input",
        "float[2,4] x, float[2,4] b -> float[2,4] y\n s = Add(x, b)\n y = Softmax<axis=-1>(s)",
        {"x": SCORES, "b": np.where(PART, 0, np.float32(LOWEST)).astype(np.float32)},
        blind=False,
    ),
    Case(
        "the mask is also an output, where it must keep its value",
        f"float[2,4] x, bool[2,4] m -> float[2,4] y, float[2,4] b\n b = Where(m, z, neg)\n {SOFTMAX}",
        {"x": SCORES, "m": PART},
        {"z": 0.0, "neg": np.float32(-1e9)},
    ),
    Case(
        "masked scores feed a maximum as well as the softmax",
        """float[2,4] x, bool[2,4] m -> float[2,4] y, float[2,1] t
        s = Where(m, x, neg)
        y = Softmax<axis=-1>(s)
        t = ReduceMax<axes=[1], keepdims=1>(s)""",
        {"x": SCORES, "m": SEEN},
        {"neg": np.float32(-1e9)},
    ),
    Case(
        "a masked LogSoftmax keeps its finite sentinels",
        "float[2,4] x, bool[2,4] m -> float[2,4] y\n s = Where(m, x, neg)\n y = LogSoftmax<axis=-1>(s)",
        {"x": SCORES, "m": PART},
        {"neg": np.float32(-1e9)},
    ),
    Case(
        "a masked sigmoid",
        "float[2,4] x, bool[2,4] m -> float[2,4] y\n s = Where(m, x, neg)\n y = Sigmoid(s)",
        {"x": SCORES, "m": PART},
        {"neg": np.float32(-1e9)},
    ),
    Case(
        "a masked maximum over time",
        """float[1,3,4] x, bool[1,3,1] m -> float[1,4] y
        s = Where(m, x, neg)
        y = ReduceMax<axes=[1], keepdims=0>(s)""",
        {"x": normal(1, 3, 4), "m": np.array([[[1], [0], [1]]], bool)},
        {"neg": np.float32(-1e9)},
    ),
    Case(
        "a masked maximum over a row masked everywhere gives the sentinel",
        "float[2,3] x, bool[2,3] m -> float[2] y\n s = Where(m, x, neg)\n y = ReduceMax<axes=[1], keepdims=0>(s)",
        {"x": normal(2, 3), "m": np.array([[1, 0, 1], [0, 0, 0]], bool)},
        {"neg": np.float32(-1e9)},
    ),
    Case(
        "a padding of -1e9",
        "float[1,4] x -> float[1,6] y\n r = Relu(x)\n y = Pad(r, p, v)",
        {"x": [[1.0, 2, 3, 4]]},
        {"p": np.int64([0, 1, 0, 1]), "v": -1e9},
    ),
    Case(
        "a padding of -1e9 in the attribute of opset 10",
        'float[1,4] x -> float[1,6] y\n r = Relu(x)\n y = Pad<mode="constant", pads=[0, 1, 0, 1], value=-1e9>(r)',
        {"x": [[1.0, 2, 3, 4]]},
        opset=10,
    ),
    Case(
        "a padding of -inf before a max pool",
        """float[1,1,4,4] x -> float[1,1,3,3] y
        p = Pad(x, pads, v)
        y = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(p)""",
        {"x": normal(1, 1, 4, 4)},
        {"pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.float32(-np.inf)},
    ),
    Case(
        "a padding of -1e9 before a max pool, where it never shows",
        """float[1,1,4,4] x -> float[1,1,3,3] y
        p = Pad(x, pads, v)
        y = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(p)""",
        {"x": normal(1, 1, 4, 4)},
        {"pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.float32(-1e9)},
    ),
    Case(
        "Max with a sentinel",
        "float[4] x -> float[4] y\n y = Max(x, low)",
        {"x": np.float32([-1e12, 1, 2, -np.inf])},
        {"low": -1e9},
        blind=False,
    ),
    Case(
        "Min against +inf, times a number near -1e12",
        "float[1,3] x -> float[1,3] y\n a = Min(x, inf)\n y = Mul(a, k)",
        {"x": [[0.0, 1e-8, 1e-7]]},
        {"inf": np.float32(np.inf), "k": -999999995904.0},
    ),
    Case(
        "suppressed tokens are scattered as -1e10, then ArgMax",
        """float[1,6] x -> float[1,6] y, int64[1,1] best
        y = ScatterND(x, i, v)
        best = ArgMax<axis=1, keepdims=1>(y)""",
        {"x": normal(1, 6)},
        {"i": np.int64([[0, 1], [0, 4]]), "v": np.full(2, -1e10, np.float32)},
    ),
    Case(
        "TopK over sentinels",
        "float[1,6] x, bool[1,6] m -> float[1,4] y, int64[1,4] i\n s = Where(m, x, neg)\n y, i = TopK<axis=1>(s, k)",
        {"x": [[0.1, 0.4, 0.2, 0.3, 0.9, 0.8]], "m": np.array([[1, 0, 1, 0, 1, 0]], bool)},
        {"neg": -1e9, "k": np.int64([4])},
    ),
    Case(
        "ConstantOfShape of 1e10 as the start of a minimum",
        """float[2,3] x -> float[2,3] y
        s = Shape(x)
        c = ConstantOfShape<value = float[1] {1e10}>(s)
        y = Min(x, c)""",
        {"x": normal(2, 3)},
    ),
    Case(
        "ConstantOfShape of 1e10 as an output",
        "float[2,3] x -> float[2,3] y\n s = Shape(x)\n y = ConstantOfShape<value = float[1] {1e10}>(s)",
        {"x": normal(2, 3)},
    ),
    Case(
        "OneHot with an off value of -1e9",
        "int64[3] i -> float[3,5] y\n o = OneHot<axis=-1>(i, d, v)\n y = Softmax<axis=-1>(o)",
        {"i": np.int64([0, 3, 4])},
        {"d": np.int64(5), "v": np.float32([-1e9, 0])},
    ),
    Case(
        "Clip with a bound of -3.4e38",
        "float[1,4] x -> float[1,4] y\n t = Add(x, x)\n y = Clip(t, lo, hi)",
        {"x": [[-5.0, 0, 2, 9]]},
        {"lo": np.float32(LOWEST), "hi": 6.0},
    ),
    Case(
        "Clip with the attributes of opset 6, and its defaults",
        "float[1,4] x -> float[1,4] y, float[1,4] z\n y = Clip<max=6.0>(x)\n z = Clip<min=0.0>(y)",
        {"x": [[-5.0, 0, 2, 9]]},
        opset=9,
    ),
    Case(
        "ordinary constants keep their value",
        "float[4] x -> float[4] y\n y = Mul(x, k)",
        {"x": np.ones(4, np.float32)},
        {"k": np.float32([20000, -60000, 1e-4, -1e-4])},
    ),
    Case(
        "weights beyond the range",
        "float[1,4] x -> float[1,2] y\n y = MatMul(x, w)",
        {"x": normal(1, 4, scale=1e-3)},
        {"w": np.float32([[1e5, 2], [3, 4], [5, -2e5], [7, 8]])},
    ),
    Case(
        "a bias beyond the range",
        "float[1,4] x -> float[1,2] y\n y = Gemm(x, w, b)",
        {"x": normal(1, 4)},
        {"w": normal(4, 2), "b": np.float32([1e5, 2])},
    ),
    Case(
        "an embedding row beyond the range",
        "int64[3] i -> float[3,2] y\n y = Gather(t, i)",
        {"i": np.int64([0, 1, 2])},
        {"t": np.float32([[1, 2], [1e5, 4], [5, 6]])},
    ),
    Case(
        "alpha and beta of Gemm beyond the range",
        "float[1,4] x -> float[1,2] y\n y = Gemm<alpha=1e6, beta=1e-6>(x, w, b)",
        {"x": normal(1, 4)},
        {"w": normal(4, 2, scale=1e-5), "b": np.float32([1e6, 2e6])},
    ),
    Case(
        "alpha of LeakyRelu and Elu that vanishes",
        "float[4] x -> float[4] y, float[4] z\n y = LeakyRelu<alpha=1e-9>(x)\n z = Elu<alpha=1e5>(x)",
        {"x": np.float32([-1, -2, 0, 0])},
    ),
    Case(
        "Selu, HardSigmoid and Shrink with attributes",
        """float[4] x -> float[4] y, float[4] z, float[4] w
        y = Selu<alpha=1.6, gamma=1.05>(x)
        z = HardSigmoid<alpha=0.16, beta=0.5>(x)
        w = Shrink<bias=1e-9, lambd=0.5>(x)""",
        {"x": np.float32([-1, -2, 0.3, 0.7])},
    ),
    Case(
        "a NaN in a table stays where it is",
        "int64[2] i -> float[2,2] y\n y = Gather(t, i)",
        {"i": np.int64([0, 2])},
        {"t": np.float32([[1, 2], [np.nan, np.nan], [3, 4]])},
    ),
    Case(
        "weights in float_data, above and below the range",
        "float[3] x -> float[3] y\n y = Mul(x, w)",
        {"x": [1.0, 1e-3, 1]},
        {"w": helper.make_tensor("w", onnx.TensorProto.FLOAT, [3], [1e-9, 70000.0, -2.0])},
    ),
    Case(
        "IsInf and IsNaN look at numbers beyond the range",
        "float[4] x -> bool[4] y, bool[4] z\n t = Mul(x, k)\n y = IsInf(t)\n z = IsNaN(t)",
        {"x": np.float32([1e3, 1, np.inf, np.nan])},
        {"k": 1e3},
    ),
    Case(
        "a comparison with a threshold beyond the range",
        "float[4] x -> bool[4] y\n t = Mul(x, k)\n y = Less(t, limit)",
        {"x": np.float32([1e3, 1, 2e3, 0])},
        {"k": 1e3, "limit": 1.5e6},
    ),
    Case(
        "a scale outside an unmasked softmax",
        "float[2,4] x -> float[2,4] y\n t = Mul(x, k)\n y = Softmax<axis=-1>(t)",
        {"x": uniform(2, 4, low=-1)},
        {"k": 1e6},
    ),
]
