"""LSTM, GRU, RNN in all their forms."""

import numpy as np

from tests.conversion.graphs import Case, normal

X = {"x": normal(5, 2, 3)}


def weights(gates, directions=1, hidden=4, inputs=3, bias=True):
    made = {
        "w": normal(directions, gates * hidden, inputs, scale=0.3),
        "r": normal(directions, gates * hidden, hidden, scale=0.3, seed=1),
    }
    return {**made, "b": normal(directions, 2 * gates * hidden, scale=0.3, seed=2)} if bias else made


def states(*names, directions=1):
    return {name: normal(directions, 2, 4, seed=i) for i, name in enumerate(names)}


CASES = [
    *(
        Case(
            f"LSTM with an empty sequence_lens and given states at opset {opset}",
            "float[5,2,3] x -> float[5,1,2,4] y, float[1,2,4] h, float[1,2,4] c\n"
            ' [lstm] y, h, c = LSTM<hidden_size=4>(x, w, r, b, "", h0, c0)',
            X,
            {**weights(4), **states("h0", "c0")},
            opset=opset,
            low=("lstm",),
        )
        for opset in (7, 14, 22)
    ),
    Case(
        "LSTM, bidirectional, sequence lengths, peepholes, all outputs",
        "float[5,2,3] x, int32[2] n -> float[5,2,2,4] y, float[2,2,4] h, float[2,2,4] c\n"
        ' [lstm] y, h, c = LSTM<hidden_size=4, direction="bidirectional">(x, w, r, b, n, h0, c0, p)',
        {**X, "n": np.int32([5, 3])},
        {**weights(4, 2), **states("h0", "c0", directions=2), "p": normal(2, 12, scale=0.3)},
        low=("lstm",),
    ),
    Case(
        "LSTM whose states are inputs and outputs, as a streaming VAD has them",
        "float[1,1,3] x, float[1,1,4] h0, float[1,1,4] c0 -> float[1,1] y, float[1,1,4] h, float[1,1,4] c\n"
        ' [lstm] o, h, c = LSTM<hidden_size=4>(x, w, r, b, "", h0, c0)\n q = Squeeze(o, ax)\n'
        " [mm] l = MatMul(q, v)\n y = Sigmoid(l)",
        {"x": normal(1, 1, 3), "h0": normal(1, 1, 4), "c0": normal(1, 1, 4)},
        {**weights(4), "v": normal(4, 1), "ax": np.int64([0, 1])},
        low=("lstm", "mm"),
    ),
    Case(
        "LSTM with only its last state read, states from ConstantOfShape",
        "float[5,2,3] x -> float[1,2,4] h\n s = ConstantOfShape<value = float[1] {0}>(sh)\n"
        ' [lstm] y, h = LSTM<hidden_size=4>(x, w, r, "", "", s, s)',
        X,
        {**weights(4, bias=False), "sh": np.int64([1, 2, 4])},
        low=("lstm",),
    ),
    Case(
        "LSTM with clip, input_forget and activations of its own",
        "float[5,2,3] x -> float[5,1,2,4] y\n"
        ' [lstm] y = LSTM<hidden_size=4, clip=3.0, activations=["HardSigmoid", "Tanh", "Tanh"],'
        " activation_alpha=[0.2], activation_beta=[0.5]>(x, w, r, b)",
        X,
        weights(4),
        low=("lstm",),
    ),
    Case(
        "LSTM, reverse, batch first by Transpose",
        "float[2,5,3] x -> float[2,5,4] y\n t = Transpose<perm=[1, 0, 2]>(x)\n"
        ' [lstm] o = LSTM<hidden_size=4, direction="reverse">(t, w, r, b)\n s = Squeeze(o, ax)\n'
        " y = Transpose<perm=[1, 0, 2]>(s)",
        {"x": normal(2, 5, 3)},
        {**weights(4), "ax": np.int64([1])},
        low=("lstm",),
    ),
    Case(
        "GRU, bidirectional, linear before reset, sequence lengths and a state",
        "float[5,2,3] x, int32[2] n -> float[5,2,2,4] y, float[2,2,4] h\n"
        ' [gru] y, h = GRU<hidden_size=4, direction="bidirectional", linear_before_reset=1>(x, w, r, b, n, h0)',
        {**X, "n": np.int32([5, 2])},
        {**weights(3, 2), **states("h0", directions=2)},
        low=("gru",),
    ),
    Case(
        "GRU in a chain of two, at opset 7",
        "float[5,2,3] x -> float[1,2,4] h\n [one] y = GRU<hidden_size=4>(x, w, r, b)\n s = Squeeze<axes=[1]>(y)\n"
        " [two] z, h = GRU<hidden_size=4>(s, w2, r2)",
        X,
        {**weights(3), "w2": normal(1, 12, 4, scale=0.3), "r2": normal(1, 12, 4, scale=0.3)},
        opset=7,
        low=("one", "two"),
    ),
    Case(
        "RNN with Relu",
        "float[5,2,3] x -> float[5,1,2,4] y, float[1,2,4] h\n"
        ' [rnn] y, h = RNN<hidden_size=4, activations=["Relu"]>(x, w, r, b, "", h0)',
        X,
        {**weights(1), **states("h0")},
        low=("rnn",),
    ),
    Case(
        "an LSTM inside a branch, as silero's VAD has it",
        "float[5,2,3] x, bool c -> float[5,1,2,4] y\n"
        " y = If(c) <then_branch = th () => (float[5,1,2,4] t) { [lstm] t = LSTM<hidden_size=4>(x, w, r, b) },"
        " else_branch = el () => (float[5,1,2,4] e) { [other] e = LSTM<hidden_size=4>(x, w, r) }>",
        {**X, "c": np.array(True)},
        weights(4),
        low=("lstm", "other"),
    ),
    Case(
        "LSTM with weights beyond the range",
        "float[5,2,3] x -> float[5,1,2,4] y\n y = LSTM<hidden_size=4>(x, w, r, b)",
        {"x": normal(5, 2, 3, scale=1e-5)},
        {**weights(4), "w": normal(1, 16, 3, scale=1e5)},
    ),
]
