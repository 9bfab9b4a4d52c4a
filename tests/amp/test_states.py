"""States outlive a change of level, of the configuration and of wrappers; they are snapshots."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel

from mpdeploy.amp import AmpConfig, Ema, Engine, Format, Level, LossScaling
from mpdeploy.errors import UsageError

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:weights in .* without FP32 masters:RuntimeWarning")


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))


def made(precision, model=None, losses=("loss",)):
    model = net() if model is None else model
    return Engine(model, torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-4), precision, losses=losses), model


def train(engine, model, steps=3, seed=1):
    torch.manual_seed(seed)
    results = []
    for _ in range(steps):
        with engine.forward():
            output = model(torch.randn(8, 4))
        engine.backward(output.float().square().mean() * 0.1)
        results.append(engine.step())
    return results


def equal(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(equal(a, b) for a, b in zip(left, right, strict=True))
    return left == right


@pytest.mark.parametrize("precision", list(Level))
def test_a_state_is_a_snapshot(precision):
    engine, model = made(precision)
    train(engine, model)
    state = engine.state_dict()
    kept = copy.deepcopy(state)
    train(engine, model)
    assert equal(state, kept), "training on must not reach into a state"
    engine.load_state_dict(state)
    train(engine, model)
    assert equal(state, kept), "nor may training on after it was loaded"


def test_an_average_is_a_snapshot():
    engine, model = made(Level.BF16_MASTER)
    average = Ema(engine, 0.5)
    state = average.state_dict()
    kept = copy.deepcopy(state)
    average.update(train(engine, model, 1)[0])
    assert equal(state, kept)
    average.load_state_dict(state)
    average.update(train(engine, model, 1)[0])
    assert equal(state, kept)


@pytest.mark.parametrize("before", [Level.FP32, Level.BF16_MIXED, Level.FP16_MASTER, Level.BF16_MASTER])
@pytest.mark.parametrize("after", list(Level))
def test_training_goes_on_at_another_level_from_the_same_fp32_numbers(before, after):
    engine, model = made(before)
    train(engine, model)
    state = engine.state_dict()
    other, other_model = made(after)
    other.load_state_dict(copy.deepcopy(state))
    assert other.scale.scale == (65536 if after.config.scaling else 1)
    if after.config.masters:
        assert equal(other.state_dict()["model"], state["model"])
        assert equal(other.state_dict()["optimizers"], state["optimizers"])
    assert train(other, other_model)[0].applied


def test_a_scale_is_taken_over_within_what_the_rule_allows():
    def config(**options):
        return AmpConfig(Format.FP16, scaling=LossScaling(**options), patience=30)

    engine, model = made(config(initial=4096, interval=2))
    train(engine, model, 1)
    state = engine.state_dict()
    for options, scale in (
        ({"initial": 16, "ceiling": 2.0**20}, 4096),
        ({"initial": 16, "ceiling": 512}, 512),
        ({"initial": 2.0**16, "floor": 8192}, 8192),
        ({"initial": 8, "floor": 8, "ceiling": 8, "growth": 1, "backoff": 1}, 8),
    ):
        other, _ = made(config(**options))
        other.load_state_dict(state)
        assert other.scale.scale == scale
    other, _ = made(Level.BF16_MIXED)
    other.load_state_dict(state)
    assert other.scale.scale == 1
    back, _ = made(Level.FP16_MIXED)
    back.load_state_dict(other.state_dict())
    assert back.scale.scale == 65536


def test_a_state_of_the_first_schema_is_read():
    for level, scales in ((Level.BF16_MASTER, {"loss": [1.0, 0, 0]}), (Level.FP16_MIXED, {"loss": [128.0, 3, 0]})):
        engine, model = made(level)
        train(engine, model)
        state = engine.state_dict()
        for new in ("schema", "level", "fp32_modules"):
            state.pop(new)
        old = {**state, "config": repr(level.config).replace(", fp32_modules=()", ""), "scales": scales}
        again, _ = made(Level.FP16_MIXED)
        again.load_state_dict(old)
        assert again.scale.scale == (128 if level is Level.FP16_MIXED else 65536)
        assert equal(again.state_dict()["model"], state["model"])


@pytest.mark.parametrize("level", [Level.FP32, Level.BF16_MASTER])
def test_wrappers_come_and_go(level, tmp_path):
    wraps = {
        "plain": lambda model: model,
        "parallel": DataParallel,
        "compiled": lambda model: torch.compile(model, backend="eager"),
        "both": lambda model: torch.compile(DataParallel(model), backend="eager"),
    }
    states = {}
    for name, wrap in wraps.items():
        engine, _ = made(level, wrap(net()))
        states[name] = engine.state_dict()
        assert states[name]["model"].keys() == net().state_dict().keys()
    prefixed = dict(states["plain"])
    prefixed["model"] = {f"module.{name}": tensor + 1 for name, tensor in prefixed["model"].items()}
    for wrap in wraps.values():
        engine, _ = made(level, wrap(net()))
        average = Ema(engine, 0.5)
        assert set(average.state_dict()) < set(net().state_dict())
        engine.load_state_dict(prefixed)
        assert torch.equal(engine.state_dict()["model"]["0.weight"], states["plain"]["model"]["0.weight"] + 1)
        average.load_state_dict({f"module.{name}": tensor for name, tensor in average.state_dict().items()})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s["model"].pop("0.weight"), "another model: it lacks `0.weight`; make the same model again"),
        (lambda s: s["model"].update(extra=torch.ones(1)), "another model: it has `extra`"),
        (lambda s: s["model"].update({"0.bias": torch.ones(9)}), "another model: it has another shape for `0.bias`"),
        (lambda s: s["optimizers"].clear(), "state is of 0 optimizers, this engine has 1"),
        (lambda s: s["optimizers"][0]["param_groups"][0]["params"].pop(), r"groups of \[5\] parameters, this AdamW of"),
        (lambda s: s.update(schema="mpdeploy.engine/9"), "of the schema 'mpdeploy.engine/9', this version reads"),
        (lambda s: s.pop("scales"), "saved state lacks scales"),
        (lambda s: s.update(scales={"other": [1.0, 0, 0]}), "no loss scale for"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_taken_over(change, says):
    engine, model = made(Level.FP16_MASTER)
    train(engine, model)
    state = engine.state_dict()
    change(state)
    other, _ = made(Level.FP16_MASTER)
    fresh = other.state_dict()
    with pytest.raises(UsageError, match=says):
        other.load_state_dict(state)
    assert equal(other.state_dict(), fresh)


class Growing(nn.Module):
    """Keeps a cache that grows, persistent or not, as rotary embeddings do."""

    def __init__(self, persistent):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("cache", torch.zeros(1), persistent=persistent)

    def forward(self, x):
        self.cache = torch.arange(float(len(self.cache) + 1))
        return self.layer(x) + 0 * self.cache.sum()


@pytest.mark.parametrize("level", [Level.FP32, Level.BF16_MASTER, Level.FP16_MIXED])
@pytest.mark.parametrize("persistent", [True, False])
def test_buffers_that_change_shape_are_averaged_skipped_and_resumed(level, persistent):
    model = Growing(persistent)
    engine, _ = made(level, model)
    average = Ema(engine, 0.5)
    for length, factor in ((2, 0.1), (3, 0.1), (3, math.inf), (4, 0.1)):
        with engine.forward():
            output = model(torch.ones(2, 4))
        engine.backward(output.float().sum() * factor)
        result = engine.step()
        assert result.applied is math.isfinite(factor)
        average.update(result)
        assert len(model.cache) == length
    assert ("cache" in average.state_dict()) is persistent
    with average.in_place_of_weights():
        assert len(model.cache) == 4
    other_model = Growing(persistent)
    other, _ = made(level, other_model)
    other.load_state_dict(engine.state_dict())
    Ema(other, 0.5).load_state_dict(average.state_dict())
    assert len(other_model.cache) == (4 if persistent else 1)
