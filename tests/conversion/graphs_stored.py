"""Initializers in unusual places, Constant nodes, Casts of the source, sources that are partly low."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.conversion.graphs import Case, metadata, normal, uniform

ROW = {"x": np.float32([[-1, 1, 2, 3]])}
TRUE = {"c": np.array(True)}


def half(*shape, seed=0):
    return uniform(*shape, seed=seed).astype(np.float16)


def sparse(model):
    values = numpy_helper.from_array(np.float32([0.5, 0.25]), "w")
    indices = numpy_helper.from_array(np.int64([1, 6]), "w_idx")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 2]))


def sparse_2d(model):
    values = numpy_helper.from_array(np.float32([0.5, 0.25]), "w")
    indices = numpy_helper.from_array(np.int64([[0, 1], [3, 0]]), "w_idx")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4, 2]))


def dressed(model):
    model.producer_name, model.producer_version, model.domain = "somebody", "1.2", "org.example"
    model.model_version, model.doc_string = 7, "a model"
    model.graph.doc_string = "its graph"
    model.graph.node[0].doc_string = "its first node"
    model.graph.input[0].doc_string = "an input"
    metadata(model, names="{0: 'cat', 1: 'dog'}", stride="32")


def constant_data(name, data):
    def tweak(model):
        node = next(n for n in model.graph.node if n.name == name)
        node.attribute[0].t.CopyFrom(data)

    return tweak


def value_info(**types):
    def tweak(model):
        for name, (kind, shape) in types.items():
            model.graph.value_info.append(helper.make_tensor_value_info(name, kind, shape))

    return tweak


F = TensorProto.FLOAT

CASES = [
    # --- initializers
    Case(
        "an initializer shared by an FP32 operator and a MatMul",
        "float[1,4] x -> float[1,8] y, float[4,2] t\n t, i = TopK<axis=-1>(w, k)\n y = MatMul(x, w)",
        ROW,
        {"w": uniform(4, 8), "k": np.int64([2])},
        low=("y",),
    ),
    Case(
        "an initializer shared by a main graph and two branches",
        """float[1,4] x, bool c -> float[1,2] y
        a = MatMul(x, w)
        y = If(c) <then_branch = th () => (float[1,2] t) { q = MatMul(x, w) t = Add(q, a) },
            else_branch = el () => (float[1,2] u) { s = ReduceSum<keepdims=0>(w) e = Exp(s) u = Mul(a, e) }>""",
        {**ROW, **TRUE},
        {"w": uniform(4, 2)},
        low=("a", "q"),
    ),
    Case(
        "two initializers that hold the same",
        "float[1,4] x -> float[1,2] y\n a = MatMul(x, w)\n b = MatMul(x, v)\n y = Add(a, b)",
        ROW,
        {"w": uniform(4, 2), "v": uniform(4, 2)},
        low=("a", "b"),
    ),
    Case(
        "an initializer that nobody reads",
        """float[1,4] x -> float[1,4] y
        y = Relu(x)""",
        ROW,
        {"w": np.float32([1e9])},
    ),
    Case(
        "a weight that is also a graph input",
        "float[1,4] x, float[4,2] w -> float[1,2] y\n y = MatMul(x, w)",
        ROW,
        {"w": uniform(4, 2)},
        opset=11,
    ),
    Case(
        "weights in Constant nodes only",
        """float[1,4] x -> float[1,2] y
        w = Constant<value = float[4,2] {1,2,3,4,5,6,7,8}>()
        b = Constant<value_floats=[0.5, 0.25]>()
        m = MatMul(x, w)
        y = Add(m, b)""",
        ROW,
        low=("m",),
    ),
    Case(
        "one Constant node feeds a MatMul and an FP32 operator",
        """float[1,4] x -> float[1,2] y
        w = Constant<value = float[4,2] {1,2,3,4,5,6,7,8}>()
        m = MatMul(x, w)
        s = ReduceSumSquare<keepdims=0>(w)
        e = Exp(s)
        l = Log(e)
        y = Div(m, l)""",
        ROW,
    ),
    Case(
        "weights through Transpose, Reshape, Identity, Cast",
        """float[1,4] x -> float[1,2] y
        wt = Transpose<perm=[1, 0]>(w)
        wi = Identity(wt)
        wc = Cast<to=1>(wi)
        y = MatMul(x, wc)""",
        ROW,
        {"w": uniform(2, 4)},
        low=("y",),
    ),
    Case("a sparse initializer", "float[1,4] x -> float[1,2] y\n y = MatMul(x, w)", ROW, tweak=sparse),
    Case(
        "a sparse initializer with indices in two columns",
        "float[1,4] x -> float[1,2] y\n y = MatMul(x, w)",
        ROW,
        tweak=sparse_2d,
        low=("y",),
    ),
    Case(
        "large weights in float_data and in a Constant node's float_data",
        "float[1,40] x -> float[1,40] y\n a = MatMul(x, w)\n k = Constant<value = float[1] {1}>()\n y = MatMul(a, k)",
        {"x": uniform(1, 40)},
        {"w": helper.make_tensor("w", F, [40, 40], uniform(1600))},
        low=("a", "y"),
        tweak=constant_data("k", helper.make_tensor("", F, [40, 40], uniform(1600, seed=1))),
    ),
    Case(
        "a weight that is small in half and large in float",
        "float[1,20] x -> float[1,20] y\n y = MatMul(x, w)",
        {"x": uniform(1, 20)},
        {"w": uniform(20, 20)},
        low=("y",),
    ),
    Case(
        "float16 weights in int32_data",
        "float[1,4] x -> float[1,2] y\n h = Cast<to=10>(x)\n m = MatMul(h, w)\n y = Cast<to=1>(m)",
        ROW,
        {"w": helper.make_tensor("w", TensorProto.FLOAT16, [4, 2], np.arange(8, dtype=np.float16))},
        low=("m",),
        formats=("fp16",),
    ),
    Case(
        "int64 weights in int64_data, doubles in double_data",
        "float[1,4] x -> float[4] y\n r = Reshape(x, s)\n d = Cast<to=11>(r)\n m = Mul(d, k)\n y = Cast<to=1>(m)",
        ROW,
        {
            "s": helper.make_tensor("s", TensorProto.INT64, [1], [4]),
            "k": helper.make_tensor("k", TensorProto.DOUBLE, [1], [0.5]),
        },
    ),
    # --- casts
    Case(
        "a float-half-float pair in the source is meaningful",
        "float[3] x -> float[3] y\n a = Cast<to=10>(x)\n b = Cast<to=1>(a)\n y = Cast<to=1>(b)",
        {"x": np.float32([1.0001, 2, 3])},
    ),
    Case(
        "a Cast that nobody reads",
        "float[3] x -> float[3] y\n dead = Cast<to=1>(x)\n y = Relu(x)",
        {"x": np.float32([1.0001, 2, 3])},
    ),
    Case(
        "an operator that nobody reads",
        "float[1,3] x -> float[1,3] y\n dead = MatMul(x, w)\n deader = Exp(dead)\n y = Relu(x)",
        {"x": np.float32([[1.0001, 2, 3]])},
        {"w": uniform(3, 3)},
    ),
    Case(
        "a Cast to FLOAT in the middle, declared in value_info",
        "int64[3] i, float[3] x -> float[3] y\n f = Cast<to=1>(i)\n y = Mul(f, x)",
        {"i": np.int64([1, 2, 3]), "x": np.float32([0.5, 0.25, 1])},
        tweak=value_info(f=(F, [3])),
    ),
    Case(
        "stale value_info of a value that does not exist",
        "float[1,4] x -> float[1,2] y\n a = MatMul(x, w)\n y = Relu(a)",
        ROW,
        {"w": uniform(4, 2)},
        low=("a",),
        tweak=value_info(a=(F, [1, 2]), ghost=(F, [3])),
    ),
    Case(
        "the source is partly half",
        """float[1,4] x -> float[1,2] y
        h1 = Cast<to=10>(x)
        h2 = MatMul(h1, w)
        f = Cast<to=1>(h2)
        y = Softmax(f)""",
        ROW,
        {"w": half(4, 2)},
        low=("h2",),
        formats=("fp16",),
    ),
    Case(
        "the source is partly bfloat16",
        """float[1,4] x -> float[1,2] y
        h1 = Cast<to=16>(x)
        h2 = MatMul(h1, w)
        f = Cast<to=1>(h2)
        s = Softmax(f)
        y = MatMul(s, v)""",
        ROW,
        {"w": helper.make_tensor("w", TensorProto.BFLOAT16, [4, 2], uniform(8)), "v": uniform(2, 2)},
        low=("y",),
    ),
    Case(
        "the source is half but for one operator",
        """float16[1,4] x -> float16[1,2] y
        h = MatMul(x, w)
        f = Cast<to=1>(h)
        s = Softmax<axis=-1>(f)
        y = Cast<to=10>(s)""",
        {"x": half(1, 4)},
        {"w": half(4, 2)},
        low=("h",),
        formats=("fp16",),
    ),
    Case(
        "the source is entirely half",
        "float16[1,4] x -> float16[1,2] y\n h = MatMul(x, w)\n y = Softmax<axis=-1>(h)",
        {"x": half(1, 4)},
        {"w": half(4, 2)},
        low=("h",),
        formats=("fp16",),
    ),
    Case(
        "half weights cast up at run time, as some exporters store them",
        "float[1,4] x -> float[1,2] y\n w = Cast<to=1>(w16)\n m = MatMul(x, w)\n y = Relu(m)",
        ROW,
        {"w16": half(4, 2)},
        low=("m",),
        formats=("fp16",),
    ),
    # --- what comes along
    Case(
        "metadata, doc strings, producer, versions",
        "float[1,4] x -> float[1,2] y\n a = MatMul(x, w)\n y = Relu(a)",
        ROW,
        {"w": uniform(4, 2)},
        low=("a",),
        tweak=dressed,
    ),
    Case(
        "opset 11 Softmax(axis=1) of rank 3: raising the opset must not move it",
        "float[2,3,4] x -> float[2,3,5] y\n a = MatMul(x, w)\n y = Softmax<axis=1>(a)",
        {"x": uniform(2, 3, 4)},
        {"w": uniform(4, 5)},
        opset=11,
        low=("a",),
    ),
    Case(
        "opset 7: Conv, BatchNormalization, Relu, Dropout, Flatten, Gemm, Softmax",
        """float[1,2,4,4] x -> float[1,3] y
        c = Conv<pads=[1, 1, 1, 1]>(x, w)
        b = BatchNormalization(c, s, o, m, v)
        r = Relu(b)
        d = Dropout<ratio=0.3>(r)
        f = Flatten<axis=1>(d)
        g = Gemm(f, k, q)
        y = Softmax<axis=1>(g)""",
        {"x": normal(1, 2, 4, 4)},
        {
            "w": normal(2, 2, 3, 3),
            "s": uniform(2, low=0.5),
            "o": normal(2),
            "m": normal(2),
            "v": uniform(2, low=0.5),
            "k": normal(32, 3, scale=0.1),
            "q": normal(3),
        },
        opset=7,
        low=("c", "g"),
    ),
]
