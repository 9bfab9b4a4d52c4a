"""The engine against hand-written loops, on small real problems."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from mpdeploy.amp import AmpConfig, Engine, Level, LossScaling, Skip
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format

torch.set_num_threads(1)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def batches(n: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 6, generator=source), torch.randint(0, 3, (8,), generator=source)) for _ in range(n)]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4)


# The warning of the levels without masters has a test of its own.
pytestmark = pytest.mark.filterwarnings("ignore:weights in .* without FP32 masters:RuntimeWarning")


def train(level, n=6, clip_norm=None):
    model = net()
    engine = Engine(model, adamw(model), level)
    results = []
    for x, y in batches(n):
        with engine.forward():
            output = model(x)
        engine.backward(functional.cross_entropy(output.float(), y))
        results.append(engine.step(clip_norm=clip_norm))
    return engine, results


def snapshot(engine: Engine) -> dict:
    return copy.deepcopy(engine.state_dict())


def assert_same(left, right):
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_same(a, b)
    else:
        assert left == right


@pytest.mark.parametrize("clip_norm", [None, 0.3])
def test_fp16_mixed_is_the_hand_written_grad_scaler_loop(clip_norm):
    engine, results = train(Level.FP16_MIXED, clip_norm=clip_norm)

    model = net()
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    norms = []
    for x, y in batches():
        with torch.autocast("cpu", torch.float16):
            output = model(x)
        scaler.scale(functional.cross_entropy(output.float(), y)).backward()
        scaler.unscale_(optimizer)
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip_norm or math.inf)))
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(engine.state_dict()["model"][name], tensor, rtol=1e-5, atol=1e-6)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-5)
    assert all(r.applied and r.clipped == (clip_norm is not None) for r in results)


def test_fp32_is_the_plain_loop_bit_for_bit():
    engine, results = train(Level.FP32)
    model = net()
    optimizer = adamw(model)
    for x, y in batches():
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_same(engine.state_dict()["model"], dict(model.state_dict()))
    assert {(r.scale_before, r.scale_after) for r in results} == {(1.0, 1.0)}


@pytest.mark.parametrize("level", list(Level))
def test_every_level_computes_in_its_format_and_keeps_fp32_state(level):
    model = net()
    engine = Engine(model, adamw(model), level)
    low = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    x, y = batches(1)[0]
    with engine.forward():
        output = model(x)
    assert output.dtype == low[engine.config.compute.value]
    assert model[0].weight.dtype == low[engine.config.weights.value]
    assert model[1].weight.dtype == torch.float32, "normalisation keeps its weights"
    engine.backward(functional.cross_entropy(output.float(), y))
    assert engine.step().applied
    state = engine.state_dict()
    tensors = list(state["model"].values())
    if engine.config.masters:
        tensors += [t for s in state["optimizers"][0]["state"].values() for t in s.values()]
    assert {t.dtype for t in tensors if t.is_floating_point()} == {torch.float32}
    with engine.full_precision():
        assert model[0].weight.dtype == torch.float32
    assert model[0].weight.dtype == low[engine.config.weights.value]


@pytest.mark.parametrize("level", [Level.FP16_MIXED, Level.FP16_MASTER, Level.BF16_MIXED, Level.FP32])
def test_a_skipped_step_leaves_nothing_behind(level):
    model = net()
    engine = Engine(model, adamw(model), level)
    x, y = batches(1)[0]

    def step(x):
        with engine.forward():
            output = model(x)
        engine.backward(functional.cross_entropy(output.float(), y))
        return engine.step()

    assert step(x).applied
    before = snapshot(engine)
    poisoned = x.clone()
    poisoned[0, 0] = math.inf
    result = step(poisoned)
    assert result.skipped is Skip.NONFINITE_GRADIENT
    assert result.grad_norm is None
    assert "0.weight" in result.nonfinite
    after = snapshot(engine)
    before_scale, after_scale = before.pop("scales"), after.pop("scales")
    assert (before.pop("streak"), after.pop("streak")) == (0, 1)
    assert_same(before, after)
    if engine.config.scaling:
        assert after_scale["loss"][0] == before_scale["loss"][0] / 2 == result.scale_after
    assert all(p.grad is None for p in model.parameters())
    assert step(x).applied


def test_a_skip_after_several_forwards_goes_back_to_the_first():
    model = net()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.01), Level.FP16_MIXED)
    before = snapshot(engine)
    for x, _ in [*batches(3), (torch.full((8, 6), math.nan), None)]:
        with engine.forward():
            output = model(x)
        engine.backward(output.float().square().mean() / 4)
    assert not engine.step().applied
    assert_same(before["model"], snapshot(engine)["model"])


def test_the_gradient_norm_and_clipping_are_in_true_units():
    # Gradient 0.2, clip 1.0, scale 65536: unclipped the weight must move by 0.2, not by 1.0 / 65536.
    layer = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(layer.weight)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=1.0), Level.FP16_MIXED)
    with engine.forward():
        output = layer(torch.ones(1, 4))
    engine.backward(0.1 * output.float().sum())
    result = engine.step(clip_norm=1.0)
    assert result.scale_before == 65536
    assert result.grad_norm == pytest.approx(0.2, rel=1e-3)
    assert not result.clipped
    assert str(result) == "applied, gradient norm 0.2, loss scale 65536"
    assert float(layer.weight.detach().norm()) == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize("level", [Level.BF16_MASTER, Level.FP16_MASTER])
def test_small_updates_are_not_lost_in_low_weights(level):
    # 1000 updates of 1e-4 on a low weight of 1.0 give 0.9; without a master they round away and leave 1.0.
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=1e-4), level)
    for _ in range(1000):
        with engine.forward():
            output = layer(torch.ones(1, 1))
        engine.backward(output.float().sum())
        engine.step()
    assert float(engine.state_dict()["model"]["weight"]) == pytest.approx(0.9, abs=1e-4)
    assert float(layer.weight.detach()) == pytest.approx(0.9, abs=4e-3)


def test_accumulation_at_a_master_level_adds_up_in_fp32():
    # 256 + 1 is not a BF16 number: adding micro-batch gradients in BF16 would lose every 1.
    layer = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(layer.weight)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=1.0), Level.BF16_MASTER)
    for value in (256.0, 1.0, 1.0, 1.0):
        with engine.forward():
            output = layer(torch.full((1, 1), value))
        engine.backward(output.float().sum())
    assert engine.step().grad_norm == 259.0


def test_masters_keep_groups_and_state_of_the_optimizer():
    model = net()
    groups = [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": [*model[1].parameters(), *model[3].parameters()]},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    functional.cross_entropy(model(batches(1)[0][0]), batches(1)[0][1]).backward()
    optimizer.step()
    momentum = optimizer.state[model[0].weight]["momentum_buffer"]
    Engine(model, optimizer, Level.BF16_MASTER)
    master = optimizer.param_groups[0]["params"][0]
    assert master is not model[0].weight
    assert master.dtype == torch.float32
    assert optimizer.state[master]["momentum_buffer"] is momentum
    assert [g["lr"] for g in optimizer.param_groups] == [0.1, 0.01]
    assert optimizer.param_groups[1]["params"][0] is model[1].weight, "normalisation needs no master"


@pytest.mark.parametrize("level", list(Level))
def test_state_goes_through_a_file_and_training_goes_on_bit_for_bit(level, tmp_path):
    whole, _ = train(level, n=6)
    first, _ = train(level, n=3)
    torch.save(first.state_dict(), tmp_path / "state.pt")

    model = net()
    engine = Engine(model, adamw(model), level)
    engine.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for x, y in batches(6)[3:]:
        with engine.forward():
            output = model(x)
        engine.backward(functional.cross_entropy(output.float(), y))
        engine.step()
    assert_same(whole.state_dict(), engine.state_dict())


def test_huge_finite_gradients_are_not_taken_for_overflow():
    layer = nn.Linear(4, 1, bias=False)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=0.0), Level.FP32)
    with engine.forward():
        output = layer(torch.full((1, 4), 1e30))
    engine.backward(output.sum())
    result = engine.step()
    assert result.applied
    assert result.grad_norm == pytest.approx(2e30)


def test_fp16_without_a_scale_loses_the_gradients_that_a_scale_keeps():
    def norm(scale: float) -> float:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
        config = AmpConfig(Format.FP16, scaling=LossScaling.static(scale))
        engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.0), config)
        with engine.forward():
            output = model(batches(1)[0][0])
        engine.backward(output.float().square().mean() * 1e-7)
        value = engine.step().grad_norm
        assert value is not None
        return value

    assert norm(2.0**16) == pytest.approx(norm(2.0**18), rel=1e-2)
    assert norm(1.0) < 0.7 * norm(2.0**16)


def test_unused_optimizers_stand_still_and_unfit_ones_are_refused():
    used, unused = nn.Linear(2, 1), nn.Linear(2, 1)
    both = nn.ModuleList([used, unused])
    optimizers = [torch.optim.SGD(used.parameters(), lr=1.0), torch.optim.Adam(unused.parameters(), lr=1.0)]
    engine = Engine(both, optimizers, Level.FP16_MIXED)
    kept = unused.weight.detach().clone()
    with pytest.raises(UsageError, match="call backward"):
        engine.step()
    with engine.forward():
        output = used(torch.ones(1, 2))
    engine.backward(0.1 * output.float().sum())
    assert engine.step().applied
    assert torch.equal(unused.weight, kept)

    with pytest.raises(UsageError, match="LBFGS"):
        Engine(used, torch.optim.LBFGS(used.parameters()), Level.FP32)
    with pytest.raises(UsageError, match="holds no parameter of the model"):
        Engine(used, torch.optim.SGD(unused.parameters(), lr=1.0), Level.FP32)


def test_buffers_that_a_forward_pass_replaced_come_back():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls = self.calls + 1  # a new tensor, not an update in place
            return x * self.weight

    model = Counting()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), Level.FP32)
    for value, calls in ((1.0, 1), (math.inf, 1), (2.0, 2)):
        with engine.forward():
            output = model(torch.full((2,), value))
        engine.backward(output.sum())
        engine.step()
        assert float(model.calls) == calls
