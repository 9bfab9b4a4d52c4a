"""Sparse gradients, momentum formats, foreach and fused steps, averages of weights."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from mpdeploy.amp import AmpConfig, Ema, Engine, Level, LossScaling
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:weights in .* without FP32 masters:RuntimeWarning")


def step(engine, model, loss):
    with engine.forward():
        output = model()
    engine.backward(loss(output.float()))
    return engine.step()


@pytest.mark.parametrize("level", [Level.FP32, Level.FP16_MIXED, Level.BF16_MASTER, Level.FP16_MASTER])
def test_sparse_gradients_are_normed_unscaled_and_applied_like_dense_ones(level):
    found = []
    for sparse in (False, True):
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=sparse)
        engine = Engine(table, torch.optim.SGD(table.parameters(), lr=0.5), level)
        for indices in ([1, 1, 7], [7, 2]):  # accumulated, with rows that repeat
            with engine.forward():
                output = table(torch.tensor(indices))
            engine.backward(output.float().square().mean() * 0.1)
        found.append((engine.step(clip_norm=0.05), engine.state_dict()["model"]["weight"]))
    (dense, expected), (sparse, weight) = found
    assert dense.applied
    assert sparse.grad_norm == pytest.approx(dense.grad_norm, rel=1e-6)
    torch.testing.assert_close(weight, expected)


def test_sparse_adam_skips_and_steps():
    table = nn.Embedding(10, 4, sparse=True)
    engine = Engine(table, torch.optim.SparseAdam(table.parameters(), lr=0.5), Level.FP16_MIXED)
    before = table.weight.detach().clone()
    for factor, applied in ((math.inf, False), (1.0, True)):
        with engine.forward():
            output = table(torch.tensor([3, 3]))
        engine.backward(output.float().sum() * factor)
        assert engine.step().applied is applied
        assert torch.equal(table.weight, before) is not applied


@pytest.mark.parametrize("options", [{"foreach": True}, {"fused": True}, {"foreach": False}, {"amsgrad": True}])
@pytest.mark.parametrize("level", [Level.BF16_MASTER, Level.FP16_MIXED])
def test_foreach_and_fused_steps_keep_their_options(level, options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
    engine = Engine(model, optimizer, level)
    x = torch.randn(32, 4)
    losses = []
    for _ in range(30):
        with engine.forward():
            output = model(x)
        loss = functional.mse_loss(output.float(), x[:, :1])
        engine.backward(loss)
        assert engine.step().applied
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2
    assert all(optimizer.param_groups[0][name] is value for name, value in options.items())


@pytest.mark.parametrize(("make", "moment"), [(torch.optim.AdamW, "exp_avg"), (torch.optim.SGD, "momentum_buffer")])
def test_momentum_rests_in_its_format_and_the_training_is_nearly_the_same(make, moment):
    found = []
    for momentum in (Format.FP32, Format.BF16):
        torch.manual_seed(0)
        layer = nn.Linear(8, 8)
        extra = {"momentum": 0.9} if make is torch.optim.SGD else {}
        optimizer = make(layer.parameters(), lr=0.01, **extra)
        config = AmpConfig(Format.BF16, weights=Format.BF16, momentum=momentum)
        engine = Engine(layer, optimizer, config)
        x = torch.randn(64, 8)
        for _ in range(20):
            with engine.forward():
                output = layer(x)
            engine.backward(functional.mse_loss(output.float(), x))
            engine.step()
        state = next(iter(optimizer.state.values()))
        assert state[moment].dtype == {Format.FP32: torch.float32, Format.BF16: torch.bfloat16}[momentum]
        if make is torch.optim.AdamW:
            assert state["exp_avg_sq"].dtype == torch.float32
        engine.load_state_dict(copy.deepcopy(engine.state_dict()))
        assert next(iter(optimizer.state.values()))[moment].dtype == state[moment].dtype
        found.append(engine.state_dict()["model"]["weight"])
    moved = (found[0] - nn.Linear(8, 8).weight.detach()).norm()
    assert (found[0] - found[1]).norm() < 0.02 * moved


def test_an_average_in_low_precision_moves():
    # With a decay of 0.9999 a weight that fell from 1 to 0 leaves an average of 0.9999 ** 2000 = 0.8187;
    # a half-precision average would stay at 1.
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=2.0), Level.FP16_MASTER)
    ema = Ema(engine, 0.9999)
    with engine.forward():
        output = layer(torch.ones(1, 1))
    engine.backward(output.float().sum() / 2)
    result = engine.step()
    assert float(engine.named_weights()["weight"].detach()) == 0.0
    for _ in range(2000):
        ema.update(result)
    assert float(ema.state_dict()["weight"]) == pytest.approx(0.8187, abs=1e-3)


@pytest.mark.parametrize("level", list(Level))
def test_averages_stand_still_on_a_skip_and_stand_in_for_the_weights(level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), level)
    ema = Ema(engine, 0.5)
    start = {name: tensor.clone() for name, tensor in ema.state_dict().items()}
    for value, moves in ((math.inf, False), (1.0, True)):
        with engine.forward():
            output = model(torch.randn(6, 3) * value)
        engine.backward(output.float().square().mean())
        ema.update(engine.step())
        now = ema.state_dict()
        assert torch.equal(now["0.weight"], start["0.weight"]) is not moves
        assert torch.equal(now["1.running_mean"], start["1.running_mean"]) is not moves
    own = engine.state_dict()["model"]
    with ema.in_place_of_weights():
        assert all(torch.equal(tensor, now[name]) for name, tensor in model.state_dict().items() if name in now)
        assert model[0].weight.dtype == torch.float32
    assert all(torch.equal(tensor, own[name]) for name, tensor in engine.state_dict()["model"].items())
    other = Ema(engine, 0.9)
    other.load_state_dict(now)
    assert torch.equal(other.state_dict()["0.weight"], now["0.weight"])
    with pytest.raises(UsageError, match="another model"):
        other.load_state_dict({"x": torch.ones(1)})
    with pytest.raises(UsageError, match=r"decay of 1 is none"):
        Ema(engine, 1.0)


def test_an_engine_wants_an_optimizer_and_a_positive_norm():
    layer = nn.Linear(2, 2)
    with pytest.raises(UsageError, match="there is no optimizer"):
        Engine(layer, [], "bf16-mixed")
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=1.0), "bf16-mixed")
    engine.backward(layer(torch.ones(1, 2)).sum())
    before = layer.weight.detach().clone()
    for norm in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="cannot be clipped"):
            engine.step(clip_norm=norm)
    assert torch.equal(layer.weight, before)


def test_levels_without_masters_warn_and_refuse_an_eps_that_vanishes():
    layer = nn.Linear(2, 2)
    with pytest.warns(RuntimeWarning, match="fp16 without FP32 masters lose every update"):
        Engine(layer, torch.optim.SGD(layer.parameters(), lr=0.1), Level.FP16_TRUE)
    layer = nn.Linear(2, 2)
    with pytest.raises(UsageError, match=r"eps of 1e-08 is zero in fp16.*fp16-master"):
        Engine(layer, torch.optim.Adam(layer.parameters()), Level.FP16_TRUE)
    for level in (Level.FP16_TRUE, Level.BF16_TRUE):
        with pytest.raises(UsageError, match=r"fused SGD leaves .* weights on a CPU unmoved.*-master"):
            Engine(layer, torch.optim.SGD(layer.parameters(), lr=0.1, fused=True), level)
    with pytest.raises(UsageError, match="no parameter of the model"):
        Engine(layer, torch.optim.SGD(nn.Linear(1, 1).parameters()), AmpConfig(Format.FP16, scaling=LossScaling()))


_MAKERS = {
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "adamw with a tensor for a rate": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
}


@pytest.mark.parametrize("name", _MAKERS)
def test_masters_learn_with_any_optimizer_what_fp32_learns(name):
    losses = []
    for level in (Level.FP32, Level.BF16_MASTER):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8))
        engine = Engine(model, _MAKERS[name](model.parameters()), level)
        x = torch.randn(16, 8)
        for _ in range(20):
            with engine.forward():
                output = model(x)
            loss = functional.mse_loss(output.float(), x)
            engine.backward(loss)
            assert engine.step().applied
        losses.append(float(loss.detach()))
    assert losses[0] < 1
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
