"""Floats that carry integers, indices, sizes, coordinates, angles, decisions."""

import numpy as np

from tests.conversion.graphs import Case, normal, uniform

TABLE = (np.arange(4100 * 2).reshape(4100, 2) / 8200).astype(np.float32)
IDS = np.int64([10, 257, 301, 2048, 4001])
LINE = np.linspace(-1, 1, 33)
GRID = np.stack(np.meshgrid(LINE, LINE), -1)[None].astype(np.float32)
BOXES = np.float32([[[0, 0, 640, 640], [1, 1, 641, 641], [700, 700, 1200, 1200]]])
NMS = {"mx": np.int64([10]), "iou": np.float32([0.5]), "st": np.float32([0.1])}

CASES = [
    Case(
        "positions by Range, times a frequency, into Cos",
        "float n -> float[M] y\n t = Range(z, n, o)\n a = Mul(t, inv)\n y = Cos(a)",
        {"n": np.float32(5000)},
        {"z": 0.0, "o": 1.0, "inv": 0.7},
    ),
    Case(
        "positions by Range over integers, cast, outer product by MatMul, Sin and Cos",
        """float[1,N,4] x -> float[N,2] y, float[N,2] z
        s = Shape(x)
        n = Gather(s, one)
        t = Range(zero, n, one)
        f = Cast<to=1>(t)
        u = Unsqueeze(f, ax)
        a = MatMul(u, freq)
        y = Cos(a)
        z = Sin(a)""",
        {"x": np.zeros((1, 3000, 4), np.float32)},
        {"one": np.int64(1), "zero": np.int64(0), "ax": np.int64([1]), "freq": np.float32([[1.0, 0.01]])},
    ),
    Case(
        "rotary embedding from position ids: Cast, MatMul, Concat, Cos, rotate",
        """float[1,4,6] x, int64[1,4] pos -> float[1,4,6] y
        f = Cast<to=1>(pos)
        u = Unsqueeze(f, ax)
        a = MatMul(freq, u)
        t = Transpose<perm=[0, 2, 1]>(a)
        e = Concat<axis=-1>(t, t)
        c = Cos(e)
        s = Sin(e)
        x1, x2 = Split<axis=-1>(x, parts)
        n = Neg(x2)
        r = Concat<axis=-1>(n, x1)
        xc = Mul(x, c)
        rs = Mul(r, s)
        y = Add(xc, rs)""",
        {"x": normal(1, 4, 6), "pos": np.int64([[0, 300, 2049, 5001]])},
        {"ax": np.int64([1]), "freq": np.float32([[[1.0], [0.1], [0.01]]]), "parts": np.int64([3, 3])},
    ),
    Case(
        "positions by CumSum over a mask, as fairseq counts them",
        """int64[1,6] m -> float[1,6,2] y
        f = Cast<to=1>(m)
        c = CumSum(f, ax)
        p = Mul(c, f)
        q = Add(p, off)
        i = Cast<to=7>(q)
        y = Gather(tab, i)""",
        {"m": np.int64([[1, 1, 1, 0, 1, 1]])},
        {"ax": np.int64(1), "off": 2047.0, "tab": TABLE},
    ),
    Case(
        "positions by ConstantOfShape, NonZero",
        """float[5] x -> int64[M] y, float[M] z
        s = Shape(x)
        o = ConstantOfShape<value = float[1] {1.0}>(s)
        nz = NonZero(o)
        y = Squeeze(nz, ax)
        f = Cast<to=1>(y)
        z = Mul(f, k)""",
        {"x": normal(5)},
        {"ax": np.int64([0]), "k": 1000.0},
    ),
    Case(
        "CumSum of ones beyond 2048",
        "float[1,5000] x -> float[1,5000] y\n y = CumSum(x, ax)",
        {"x": np.ones((1, 5000), np.float32)},
        {"ax": np.int64(1)},
        opset=14,
    ),
    Case(
        "CumSum in reverse and exclusive",
        "float[1,5000] x -> float[1,5000] y\n y = CumSum<exclusive=1, reverse=1>(x, ax)",
        {"x": np.ones((1, 5000), np.float32)},
        {"ax": np.int64(1)},
        opset=14,
    ),
    Case(
        "embedding ids pass through float",
        """int64[5] ids -> float[5,2] y
        f = Cast<to=1>(ids)
        g = Add(f, off)
        i = Cast<to=7>(g)
        y = Gather(tab, i)""",
        {"ids": IDS},
        {"off": 1.0, "tab": TABLE},
    ),
    Case(
        "ids arrive as floats and are cast at once",
        "float[5] ids -> float[5,2] y\n i = Cast<to=6>(ids)\n y = Gather(tab, i)",
        {"ids": IDS.astype(np.float32)},
        {"tab": TABLE},
    ),
    Case(
        "ids arrive as floats and go through Reshape, Concat and Slice first",
        """float[5] ids -> float[4,2] y
        r = Reshape(ids, shape)
        c = Concat<axis=1>(r, more)
        s = Slice(c, from, to, ax)
        q = Squeeze(s, zero)
        i = Cast<to=7>(q)
        y = Gather(tab, i)""",
        {"ids": IDS.astype(np.float32)},
        {
            "shape": np.int64([1, 5]),
            "more": np.float32([[3999]]),
            "from": np.int64([2]),
            "to": np.int64([6]),
            "ax": np.int64([1]),
            "zero": np.int64([0]),
            "tab": TABLE,
        },
    ),
    Case(
        "ids pass through Where and a comparison",
        """float[5] ids -> float[5,2] y
        ok = GreaterOrEqual(ids, limit)
        w = Where(ok, pad, ids)
        i = Cast<to=7>(w)
        y = Gather(tab, i)""",
        {"ids": IDS.astype(np.float32)},
        {"limit": 4001.0, "pad": 3.0, "tab": TABLE},
    ),
    Case(
        "ids pass through an If",
        """float[5] ids, bool c -> float[5,2] y
        j = If(c) <then_branch = th () => (float[5] a) { a = Add(ids, off) },
                   else_branch = el () => (float[5] b) { b = Identity(ids) }>
        i = Cast<to=7>(j)
        y = Gather(tab, i)""",
        {"ids": IDS.astype(np.float32), "c": np.array(True)},
        {"off": 1.0, "tab": TABLE},
    ),
    Case(
        "ids pass through a Loop",
        """float[5] ids -> float[5,2] y
        j = Loop(n, t, ids) <body = body (int64 k, bool ci, float[5] s) => (bool co, float[5] so)
            { co = Identity(ci) so = Add(s, off) }>
        i = Cast<to=7>(j)
        y = Gather(tab, i)""",
        {"ids": IDS.astype(np.float32)},
        {"n": np.int64(3), "t": np.array(True), "off": 1.0, "tab": TABLE},
    ),
    Case(
        "the best of the scores, counted as float",
        """float[1,3000] x -> float[1,2] y
        b = ArgMax<axis=1, keepdims=0>(x)
        f = Cast<to=1>(b)
        g = Add(f, one)
        i = Cast<to=7>(g)
        y = Gather(tab, i)""",
        {"x": np.eye(3000, dtype=np.float32)[2600:2601]},
        {"one": 1.0, "tab": TABLE},
    ),
    Case(
        "indices of TopK divided: row and column",
        """float[1,5000] x -> int64[1,3] row, int64[1,3] col
        v, i = TopK<axis=1>(x, k)
        f = Cast<to=1>(i)
        q = Div(f, w)
        fl = Floor(q)
        row = Cast<to=7>(fl)
        m = Mul(fl, w)
        r = Sub(f, m)
        col = Cast<to=7>(r)""",
        {"x": np.random.default_rng(0).permutation(5000)[None].astype(np.float32) / 5000},
        {"k": np.int64([3]), "w": 70.0},
    ),
    Case(
        "frame arithmetic: floor((n - 400) / 160) + 1",
        """float[1,N] x -> float[M] y, int64 frames
        s = Shape(x)
        n = Gather(s, one)
        f = Cast<to=1>(n)
        a = Sub(f, win)
        b = Div(a, hop)
        c = Floor(b)
        d = Add(c, of)
        frames = Cast<to=7>(d)
        fl = Unsqueeze(frames, ax)
        y = ConstantOfShape<value = float[1] {1.0}>(fl)""",
        {"x": np.zeros((1, 16003), np.float32)},
        {"one": np.int64(1), "win": 400.0, "hop": 160.0, "of": 1.0, "ax": np.int64([0])},
    ),
    Case(
        "lengths of an utterance scaled to frames by ceil",
        """float[2] len -> int64[2] y
        f = Mul(len, total)
        d = Div(f, stride)
        c = Ceil(d)
        y = Cast<to=7>(c)""",
        {"len": np.float32([1, 0.6667])},
        {"total": 3001.0, "stride": 4.0},
    ),
    Case(
        "a mask from lengths: Range against a float length",
        """float[2] len, float[1,N] x -> bool[2,N] y
        s = Shape(x)
        n = Gather(s, one)
        r = Range(zero, n, one)
        f = Cast<to=1>(r)
        u = Unsqueeze(len, ax)
        m = Mul(u, total)
        y = Less(f, m)""",
        {"len": np.float32([1, 0.7]), "x": np.zeros((1, 3001), np.float32)},
        {"one": np.int64(1), "zero": np.int64(0), "ax": np.int64([1]), "total": 3001.0},
    ),
    Case(
        "relative position buckets of T5: Log, Div, Mul, Cast to int",
        """int64[1,6] d -> float[1,6,2] y
        f = Cast<to=1>(d)
        a = Div(f, eight)
        l = Log(a)
        b = Div(l, ln16)
        c = Mul(b, eight)
        i = Cast<to=7>(c)
        e = Add(i, eight_i)
        m = Min(e, last)
        y = Gather(tab, m)""",
        {"d": np.int64([[8, 16, 17, 63, 64, 127]])},
        {
            "eight": 8.0,
            "ln16": float(np.log(16)),
            "eight_i": np.int64(8),
            "last": np.int64(15),
            "tab": normal(16, 2),
        },
    ),
    Case(
        "Mod of floats, and of floats with fmod",
        """float[4] x -> float[4] y, float[4] z
        q = Mul(x, one)
        y = Mod<fmod=1>(q, w)
        f = Floor(q)
        z = Mod<fmod=1>(f, w)""",
        {"x": np.float32([5, 2049, 4097, 10001])},
        {"one": 1.0, "w": 100.0},
    ),
    Case(
        "Round, Floor and Ceil of large products",
        """float[4] x -> float[4] y, float[4] z, float[4] w
        p = Mul(x, k)
        y = Round(p)
        z = Floor(p)
        w = Ceil(p)""",
        {"x": np.float32([0.5, 0.1234, 0.777, 0.999])},
        {"k": 4096.0},
    ),
    Case(
        "Resize scales computed at run time: Shape, Cast, Div, Concat",
        """float[1,1,H,W] x, float[1,1,P,Q] like -> float[1,1,A,B] y
        sx = Shape(x)
        sl = Shape(like)
        fx = Cast<to=1>(sx)
        fl = Cast<to=1>(sl)
        sc = Div(fl, fx)
        r = Relu(x)
        y = Resize<mode="nearest">(r, "", sc)""",
        {"x": uniform(1, 1, 7, 9), "like": np.zeros((1, 1, 300, 301), np.float32)},
    ),
    Case(
        "Resize sizes computed through float: Shape, Cast, Mul, Floor, Cast",
        """float[1,1,H,W] x -> float[1,1,A,B] y
        s = Shape<start=2>(x)
        f = Cast<to=1>(s)
        m = Mul(f, k)
        fl = Floor(m)
        i = Cast<to=7>(fl)
        z = Concat<axis=0>(ones, i)
        y = Resize<mode="linear">(x, "", "", z)""",
        {"x": uniform(1, 1, 7, 9)},
        {"k": 3.3, "ones": np.int64([1, 1])},
    ),
    Case(
        "a shape for Reshape that passes through float",
        """float[N,6] x -> float[A,B] y
        s = Shape(x)
        f = Cast<to=1>(s)
        p = ReduceProd<keepdims=1>(f)
        h = Div(p, two)
        i = Cast<to=7>(h)
        z = Concat<axis=0>(i, two_i)
        r = Relu(x)
        y = Reshape(r, z)""",
        {"x": normal(1001, 6)},
        {"two": 2.0, "two_i": np.int64([2])},
    ),
    Case(
        "a repetition count for Tile that passes through float",
        """float[1,2] x, float n -> float[A,2] y
        m = Mul(n, half)
        c = Ceil(m)
        i = Cast<to=7>(c)
        u = Unsqueeze(i, ax)
        r = Concat<axis=0>(u, one)
        t = Mul(x, half)
        y = Tile(t, r)""",
        {"x": normal(1, 2), "n": np.float32(4099)},
        {"half": 0.5, "ax": np.int64([0]), "one": np.int64([1])},
    ),
    Case(
        "GridSample on a 512-wide map",
        "float[1,1,512,512] x, float[1,33,33,2] gr -> float[1,1,33,33] y\n g = Mul(gr, k)\n"
        ' y = GridSample<mode="bilinear", padding_mode="zeros", align_corners=1>(x, g)',
        {"x": uniform(1, 1, 512, 512), "gr": GRID},
        {"k": 0.999},
    ),
    Case(
        "GridSample with a flow added to a base grid, as optical flow warps",
        """float[1,1,256,256] x, float[1,2,16,16] flow -> float[1,1,16,16] y
        t = Transpose<perm=[0, 2, 3, 1]>(flow)
        c = Add(base, t)
        d = Div(c, size)
        m = Mul(d, two)
        g = Sub(m, one)
        y = GridSample<mode="bilinear", padding_mode="border">(x, g)""",
        {"x": uniform(1, 1, 256, 256), "flow": normal(1, 2, 16, 16, scale=3)},
        {
            "base": (np.stack(np.meshgrid(np.arange(16), np.arange(16)), -1)[None] * 16).astype(np.float32),
            "size": np.float32([255, 255]),
            "two": 2.0,
            "one": 1.0,
        },
    ),
    Case(
        "GridSample whose offsets come from a convolution",
        """float[1,2,16,16] x -> float[1,2,16,16] y
        o = Conv<pads=[1, 1, 1, 1]>(x, w)
        t = Transpose<perm=[0, 2, 3, 1]>(o)
        g = Add(base, t)
        y = GridSample<mode="bilinear", padding_mode="border">(x, g)""",
        {"x": uniform(1, 2, 16, 16)},
        {
            "w": normal(2, 2, 3, 3, scale=0.01),
            "base": np.stack(np.meshgrid(np.linspace(-1, 1, 16), np.linspace(-1, 1, 16)), -1)[None].astype(np.float32),
        },
        low=("o",),
    ),
    Case(
        "AffineGrid and GridSample",
        "float[1,1,16,16] x, float[1,2,3] th -> float[1,1,16,16] y\n t = Mul(th, one)\n g = AffineGrid(t, size)\n"
        ' y = GridSample<mode="linear">(x, g)',
        {"x": uniform(1, 1, 16, 16), "th": np.float32([[[0.9, 0.1, 0.03], [-0.1, 0.9, 0.07]]])},
        {"one": 1.0, "size": np.int64([1, 1, 16, 16])},
        opset=20,
    ),
    Case(
        "NonMaxSuppression with scaled boxes",
        """float[1,3,4] b, float[1,1,3] sc -> int64[M,3] y
        bb = Mul(b, s)
        y = NonMaxSuppression(bb, sc, mx, iou, st)""",
        {"b": BOXES, "sc": np.float32([[[0.9, 0.8, 0.7]]])},
        {"s": 1.5, **NMS},
    ),
    Case(
        "NonMaxSuppression with boxes decoded from anchors and scores from a sigmoid, boxes then gathered",
        """float[1,3,4] t, float[1,1,3] l -> int64[M,3] y, float[M,4] kept
        xy, wh = Split<axis=2>(t, parts)
        e = Exp(wh)
        size = Mul(e, anchor)
        c = Add(xy, centre)
        half = Mul(size, h)
        lo = Sub(c, half)
        hi = Add(c, half)
        bb = Concat<axis=2>(lo, hi)
        sc = Sigmoid(l)
        y = NonMaxSuppression(bb, sc, mx, iou, st)
        i = Gather<axis=1>(y, two)
        flat = Squeeze(bb, zero)
        kept = Gather(flat, i)""",
        {"t": normal(1, 3, 4, scale=0.1), "l": np.float32([[[2, 1.9, 1]]])},
        {
            "parts": np.int64([2, 2]),
            "anchor": np.float32([[[600, 500], [610, 490], [100, 90]]]),
            "centre": np.float32([[[600, 500], [900, 500], [1200, 900]]]),
            "h": 0.5,
            "two": np.int64(2),
            "zero": np.int64([0]),
            **NMS,
        },
    ),
    Case(
        "RoiAlign on boxes given as an input",
        "float[1,1,8,8] x, float[1,4] rois -> float[1,1,2,2] y\n r = Relu(x)\n"
        " y = RoiAlign<output_height=2, output_width=2, spatial_scale=1.0>(r, rois, bi)",
        {"x": uniform(1, 1, 8, 8), "rois": np.float32([[0, 0, 6, 6]])},
        {"bi": np.int64([0])},
    ),
    Case(
        "RoiAlign on boxes scaled from the image's size",
        "float[1,1,64,64] x, float[1,4] rois -> float[1,1,2,2] y\n r = Relu(x)\n b = Mul(rois, k)\n"
        " y = RoiAlign<output_height=2, output_width=2, spatial_scale=0.0625>(r, b, bi)",
        {"x": uniform(1, 1, 64, 64), "rois": np.float32([[0.1, 0.2, 0.7, 0.9]])},
        {"bi": np.int64([0]), "k": np.float32([1024, 1024, 1024, 1024])},
    ),
    Case(
        "the condition of an If compares sums of floats",
        """float[1,3000] x -> float[1,3000] y
        s = ReduceSum<keepdims=0>(x)
        c = Greater(s, limit)
        y = If(c) <then_branch = th () => (float[1,3000] a) { a = Mul(x, two) },
                   else_branch = el () => (float[1,3000] b) { b = Identity(x) }>""",
        {"x": np.ones((1, 3000), np.float32)},
        {"limit": 2999.5, "two": 2.0},
    ),
    Case(
        "a Loop ends by a comparison of floats",
        """float x -> float y, int64 n
        z = Constant<value_int=0>()
        y, n = Loop("", t, x, z) <body = body (int64 k, bool ci, float s, int64 m) => (bool co, float so, int64 mo)
            { so = Mul(s, g) co = Less(so, limit) mo = Add(m, one) }>""",
        {"x": np.float32(1)},
        {"t": np.array(True), "g": 1.001, "limit": 1.1, "one": np.int64(1)},
    ),
    Case(
        "NonZero counts what is over a threshold",
        "float[6] x -> int64[1,M] y\n m = Mul(x, k)\n c = Greater(m, limit)\n y = NonZero(c)",
        {"x": np.float32([0.1, 0.5001, 0.4999, 0.9, 0.50005, 0.2])},
        {"k": 1000.0, "limit": 500.0},
    ),
    Case(
        "Compress and Where by a float comparison near the threshold",
        "float[6] x -> float[M] y\n c = Greater(x, limit)\n m = Mul(x, k)\n y = Compress<axis=0>(m, c)",
        {"x": np.float32([0.1, 0.5001, 0.4999, 0.9, 0.50005, 0.2])},
        {"k": 2.0, "limit": 0.5},
    ),
    Case(
        "Unique of large whole numbers",
        "float[6] x -> float[M] y, int64[K] i, int64[6] inv, int64[M] n\n y, i, inv, n = Unique(x)",
        {"x": np.float32([2048, 2049, 2050, 2049, 4097, 4096])},
    ),
    Case(
        "Equal of large whole numbers",
        "float[4] a, float[4] b -> bool[4] y\n s = Add(a, one)\n y = Equal(s, b)",
        {"a": np.float32([2048, 4096, 10, 300]), "b": np.float32([2050, 4097, 11, 301])},
        {"one": 1.0},
    ),
    Case(
        "a hash of ids by float arithmetic",
        """int64[4] ids -> int64[4] y
        f = Cast<to=1>(ids)
        m = Mul(f, k)
        q = Div(m, w)
        fl = Floor(q)
        t = Mul(fl, w)
        r = Sub(m, t)
        y = Cast<to=7>(r)""",
        {"ids": np.int64([5, 99, 1234, 4001])},
        {"k": 31.0, "w": 1009.0},
    ),
    Case(
        "a timestep embedding: Cast, Mul, Sin, Cos, Concat, MatMul",
        """int64[1] t -> float[1,4] y
        f = Cast<to=1>(t)
        u = Unsqueeze(f, ax)
        a = Mul(u, freq)
        c = Cos(a)
        s = Sin(a)
        e = Concat<axis=1>(c, s)
        y = MatMul(e, w)""",
        {"t": np.int64([981])},
        {"ax": np.int64([1]), "freq": np.float32([[1, 0.1, 0.01, 0.001]]), "w": normal(8, 4)},
        low=("y",),
    ),
    Case(
        "an angle by Einsum of positions and frequencies",
        """float[5] t -> float[5,4] y
        a = Einsum<equation="i,j->ij">(t, freq)
        y = Sin(a)""",
        {"t": np.float32([0, 1000, 2001, 3003, 4095])},
        {"freq": np.float32([1, 0.1, 0.01, 0.001])},
    ),
    Case(
        "ScatterND and GatherND with indices by float arithmetic",
        """float[3] p, float[3000] x -> float[3] y
        q = Mul(p, n)
        r = Round(q)
        i = Cast<to=7>(r)
        u = Unsqueeze(i, ax)
        y = GatherND(x, u)""",
        {"p": np.float32([0.1, 0.5557, 0.99]), "x": np.arange(3000, dtype=np.float32) / 3000},
        {"n": 2999.0, "ax": np.int64([1])},
    ),
]
