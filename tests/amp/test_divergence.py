"""Training that can not go on stops, and says what was first not finite."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from mpdeploy.amp import AmpConfig, Engine, Level, LossScaling
from mpdeploy.errors import TrainingDiverged
from mpdeploy.numerics.formats import Format

torch.set_num_threads(1)


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x - x)


class NanBackward(nn.Module):
    def forward(self, x):
        return x + (x * 0).abs().sqrt()  # the derivative of the square root at 0 times 0 is NaN


def run(model, config, *, loss=lambda output: output.float().square().mean(), x=None):
    torch.manual_seed(0)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.01), config)
    x = torch.randn(8, 4) if x is None else x
    for number in range(1, 200):
        with engine.forward():
            output = model(x)
        engine.backward(loss(output))
        try:
            engine.step()
        except TrainingDiverged as error:
            return str(error), number
    raise AssertionError("training did not stop")


def body(*layers):
    return nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 1))


FAST = AmpConfig(Format.BF16, patience=3)


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (body(Log()), {}, "the output of `1` (Log) in the forward pass"),
        (body(NanBackward()), {}, "the gradient that reaches the output of `0`"),
        (body(), {"x": torch.full((2, 4), math.nan)}, "the model's input"),
        (body(), {"loss": lambda output: output.float().mean() * math.inf}, "the loss"),
    ],
)
def test_the_first_culprit_is_named(model, options, says):
    message, steps = run(model, FAST, **options)
    assert steps == 3
    assert "3 steps in a row were skipped" in message
    assert f"first not finite is {says}," in message
    assert "\n" not in message


def test_the_parameter_is_the_first_that_the_backward_pass_met():
    message, _ = run(body(NanBackward()), FAST)
    assert message.partition("of the parameters that of ")[2].startswith("`0.bias`")
    message, _ = run(body(Log()), FAST)
    assert message.partition("of the parameters that of ")[2].startswith("`2.bias`")


def test_a_weight_that_is_not_finite_is_named():
    model = body()
    with torch.no_grad():
        model[1].weight[0, 2] = math.inf
    message, _ = run(model, FAST)
    assert "the weight `1.weight`" in message


def test_a_dynamic_scale_stops_at_its_floor_and_a_static_one_after_the_patience():
    scaling = LossScaling(initial=16, floor=2)
    message, steps = run(body(Log()), AmpConfig(Format.FP16, scaling=scaling))
    assert "at its floor of 2" in message
    assert steps == 3
    message, steps = run(body(Log()), AmpConfig(Format.FP16, scaling=LossScaling.static(2.0), patience=5))
    assert "floor" not in message
    assert steps == 5


def test_an_applied_step_starts_the_count_again():
    model = body()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.01), FAST)
    streaks = []
    for bad in (1, 1, 0, 1, 1, 0):
        with engine.forward():
            output = model(torch.full((2, 4), math.nan if bad else 1.0))
        engine.backward(output.float().mean())
        streaks.append(engine.step().streak)
    assert streaks == [1, 2, 0, 1, 2, 0]


def test_the_stop_leaves_nothing_behind_and_the_streak_is_saved():
    model = body()
    engine = Engine(model, torch.optim.AdamW(model.parameters()), FAST)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for _ in range(2):
        with engine.forward():
            output = model(torch.full((2, 4), math.nan))
        engine.backward(output.float().mean())
        engine.step()
    again = Engine(model, torch.optim.AdamW(model.parameters()), FAST)
    again.load_state_dict(engine.state_dict())
    with again.forward():
        output = model(torch.full((2, 4), math.nan))
    again.backward(output.float().mean())
    with pytest.raises(TrainingDiverged, match=r"3 steps in a row .* the model's input"):
        again.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_hooks_are_gone_once_training_is_well_again():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.01), Level.FP16_MIXED)
    hooked = []
    for factor in (1e9, 0.01):
        with engine.forward():
            output = model(torch.ones(2, 4))
        engine.backward(functional.mse_loss(output.float(), torch.ones(2, 1)) * factor)
        engine.step()
        hooked.append(any(module._forward_hooks for module in model.modules()))
    assert hooked == [True, False]
