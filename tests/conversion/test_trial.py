"""A conversion with data is held to the default budget on all of it, repaired on it, and tells what is left."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from mpdeploy import records
from mpdeploy.conversion.api import convert
from mpdeploy.errors import ModelError
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.runtime.feeds import feeds_of
from mpdeploy.verification.api import verify

RNG = np.random.default_rng


@pytest.fixture
def model(folder):
    """Write a graph in ONNX's text form with weights; return its path."""

    def written(text, weights=None, opset=17):
        made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
        made.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items())
        path = folder / "source.onnx"
        onnx.save(made, path)
        return path

    return written


def square(size, seed=0):
    return (RNG(seed).normal(size=(size, size)) / np.sqrt(size)).astype(np.float32)


SQUARED = "g (float[4,16] x) => (float[4,16] y) { a = MatMul(x, w)  e = Exp(a)  f = Mul(e, e)  y = MatMul(f, w) }"


@pytest.mark.parametrize("policy", [None, "safe", "autocast", "fast"])
def test_no_policy_writes_what_breaks_on_its_own_data(model, folder, policy):
    # A7: `fast` wrote NaN.  Whatever the policy, the result holds on the data.
    path = model(SQUARED, {"w": square(16)})
    feed = {"x": RNG(1).normal(size=(4, 16)).astype(np.float32) * 4}
    convert(path, folder / "low.onnx", precision="fp16", data=[feed], policy=policy)
    assert verify(path, folder / "low.onnx", [feed]).verdict.passed


def test_what_no_choice_of_formats_mends_is_refused_even_by_fast(model, folder):
    # A7: 0 times an infinite sentinel.  With low inputs and outputs the value that breaks is the output itself.
    path = model("g (float[2,4] x) => (float[2,4] y) <float big = {3000}> { a = Mul(x, big)  y = Mul(a, big) }")
    data = [{"x": np.ones((2, 4), np.float32)}]
    with pytest.raises(ModelError, match="NaN or infinite on the data"):
        convert(path, folder / "low.onnx", precision="fp16", data=data, policy="fast", low_io=True)
    assert not (folder / "low.onnx").exists()


LOG_NORM = """g (float[1,K,T] p) => (float[1,N,M] y) {
    m = MatMul(mel, p)  c = Clip(m, floor)  l = Log(c)
    a = Conv<pads = [1, 1]>(l, w0)  n = InstanceNormalization(a, one, zero)  r = Relu(n)
    b = Conv<pads = [1, 1]>(r, w1)  o = InstanceNormalization(b, one, zero)  y = Relu(o)
}"""


def log_norm_weights():
    rng = RNG(0)
    return {
        "mel": np.abs(rng.normal(size=(40, 65))).astype(np.float32) * np.float32(0.01),
        "floor": np.float32(1e-10),
        "w0": (rng.normal(size=(32, 40, 3)) / 11).astype(np.float32),
        "w1": (rng.normal(size=(32, 32, 3)) / 10).astype(np.float32),
        "one": np.ones(32, np.float32),
        "zero": np.zeros(32, np.float32),
    }


@pytest.mark.parametrize(("precision", "level", "varied"), [("fp16", 100, 0.01), ("bf16", 1, 0.1), ("bf16", 1e4, 0.1)])
def test_what_drifts_over_the_default_budget_is_repaired_on_the_data(model, folder, precision, level, varied):
    # A8: convolutions read logarithms that a norm then stretches; no single operator is to blame.
    path, rng = model(LOG_NORM, log_norm_weights()), RNG(1)
    feeds = [{"p": (level * (1 + varied * rng.random((1, 65, 50)))).astype(np.float32)} for _ in range(4)]
    result = convert(path, folder / "low.onnx", precision=precision, data=feeds)
    assert result.trial.within
    assert result.trial.plans > 1
    assert result.low_flops > 0.3
    assert verify(path, folder / "low.onnx", feeds).verdict.passed


def test_the_trial_judges_as_verification_does(model, folder):
    path = model("g (float[8,16] x) => (float[8,16] y) { a = MatMul(x, w)  y = Tanh(a) }", {"w": square(16)})
    feeds = [{"x": RNG(i).normal(size=(8, 16)).astype(np.float32), "labels": np.arange(8)} for i in range(3)]
    trial = convert(path, folder / "low.onnx", precision="bf16", data=feeds).trial
    report = verify(path, folder / "low.onnx", feeds)
    assert trial.budget == f"{report.budget.origin}: {report.budget}"
    assert (trial.feeds, trial.samples, trial.given) == (3, 24, 3)
    assert trial.drift == pytest.approx(report.outputs[0].norm_relative)


def test_every_feed_is_judged_and_the_worst_one_named(model, folder):
    # A25: on all feeds but the last the difference is of small numbers.
    path = model(
        "g (float[1,8] x, float[1,8] z) => (float[1,8] y) { a = MatMul(x, w)  b = MatMul(z, w)  y = Sub(a, b) }"
    )
    model_path = onnx.load(path)
    model_path.graph.initializer.append(numpy_helper.from_array(square(8), "w"))
    onnx.save(model_path, path)
    rng = RNG(3)
    feeds = [{"x": rng.normal(size=(1, 8)).astype(np.float32), "z": np.zeros((1, 8), np.float32)} for _ in range(6)]
    feeds[4] = {"x": feeds[4]["x"] * 5, "z": feeds[4]["x"] * np.float32(6)}
    trial = convert(path, folder / "low.onnx", precision="bf16", data=feeds_of(feeds, "given")).trial
    assert trial.feeds == 6
    assert trial.feed == "given #4"


def sensitive(model):
    """The sum of large weights of both signs: rounding them alone moves the result by several times its size."""
    weights = (RNG(0).normal(size=(64, 8)) * 1000).astype(np.float32)
    weights -= weights.mean(axis=0, keepdims=True)
    return model("g (float[4,64] x) => (float[4,8] y) { y = MatMul(x, w) }", {"w": weights})


def test_a_model_as_sensitive_as_its_weights_rounding_is_told_so_in_a_sentence(model, folder):
    # A21: nothing that stays FP32 but the product itself would help; one run tells, and the rounds are saved.
    path = sensitive(model)
    feeds = [
        {"x": np.full((4, 64), 1, np.float32) + np.float32(1e-4) * RNG(i).random((4, 64), np.float32)} for i in (0, 1)
    ]
    trial = convert(path, folder / "low.onnx", precision="bf16", data=feeds).trial
    assert not trial.within
    assert "nothing rounded but its weights" in trial.cause
    assert trial.plans == 1


def test_a_model_that_draws_random_numbers_is_not_repaired(model, folder):
    noisy = "a = MatMul(x, w)  r = RandomNormalLike(a)  b = Add(a, r)  y = MatMul(b, w)"
    path = model(f"g (float[4,16] x) => (float[4,16] y) {{ {noisy} }}", {"w": square(16)})
    trial = convert(path, folder / "low.onnx", precision="fp16", data=[{"x": np.ones((4, 16), np.float32)}]).trial
    assert "the same numbers twice" in trial.cause
    assert trial.plans == 1


def test_over_budget_is_the_first_line_and_a_field(model, folder, cli):
    path, data = sensitive(model), folder / "feed.npz"
    np.savez(data, x=np.full((4, 64), 1, np.float32))
    words = ["convert", str(path), "-o", str(folder / "low.onnx"), "--precision", "bf16", "--data", str(data)]
    done = cli(*words)
    assert done.code == 0
    first = done.out.splitlines()[0]
    assert first.startswith("OVER BUDGET  ")
    assert "of output 'y' is" in first
    assert cli(*words, "--json").document["trial"]["within"] is False


POWER = "g (float[1,3,16,16] x) => (float[1,8,16,16] y) <float floor = {1e-9}> { c = Conv<pads = [1,1,1,1]>(x, w) "


def convolution(path):
    plan = records.load(PrecisionPlan, path)
    return next(d for d in plan.decisions if d.op == "Conv")


def test_a_product_is_low_where_a_logarithm_behind_it_does_not_feel_its_rounding(model, folder):
    # A10: single elements of c * c lie far below FP16, as of any convolution's; the logarithm of the others decides.
    kernel = RNG(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
    feed = {"x": RNG(1).normal(size=(1, 3, 16, 16)).astype(np.float32)}
    path = model(POWER + "p = Mul(c, c)  s = Add(p, floor)  y = Log(s) }", {"w": kernel * np.float32(1e-3)})
    convert(path, folder / "low.onnx", precision="fp16", data=[feed])
    decision = convolution(folder / "low.plan.json")
    assert (decision.format, decision.code) == (Format.FP16, "MP811")
    assert verify(path, folder / "low.onnx", [feed]).verdict.passed


def test_a_product_stays_fp32_where_a_quotient_behind_it_feels_its_rounding(model, folder):
    # c over its own magnitude is its sign: of what vanished it is 0.
    kernel = RNG(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
    feed = {"x": RNG(1).normal(size=(1, 3, 16, 16)).astype(np.float32)}
    feed["x"][:, :, 4:8] *= np.float32(1e-4)
    text = "p = Mul(c, c)  s = Add(p, floor)  r = Sqrt(s)  y = Div(c, r) }"
    path = model(POWER.replace("1e-9", "1e-20") + text, {"w": kernel * np.float32(1e-3)})
    result = convert(path, folder / "low.onnx", precision="fp16", data=[feed])
    decision = convolution(folder / "low.plan.json")
    assert (decision.format, decision.code) == (Format.FP32, "MP113")
    assert result.trial.plans == 2  # the second had the product low
    assert verify(path, folder / "low.onnx", [feed]).verdict.passed
