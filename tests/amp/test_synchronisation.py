"""How often an engine waits for the device: once a step, skipped steps included."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mpdeploy.amp import Ema, Engine, Level, LossScaling

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:weights in .* without FP32 masters:RuntimeWarning")


VIEWS = {"detach", "view", "split", "split_with_sizes", "t", "slice", "unbind", "unsafe_view", "_unsafe_view"}


class Device(TorchDispatchMode):
    """Counts what makes the host wait for a device, and what is launched on it."""

    WAITS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero")

    def __init__(self):
        super().__init__()
        self.waits = self.launches = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.waits += name in self.WAITS
        self.launches += name not in VIEWS
        return func(*args, **(kwargs or {}))


@pytest.fixture
def transfers(monkeypatch):
    """Counts transfers to the host: on a CPU a tensor's ``cpu()``, ``tolist()`` and ``float()`` leave no operator."""
    counted = []
    for name in ("cpu", "tolist", "item", "__float__", "__bool__"):
        original = getattr(torch.Tensor, name)

        def reading(tensor, *args, _original=original, _name=name, **kwargs):
            counted.append(_name)
            return _original(tensor, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, reading)
    return counted


def net(depth=6):
    torch.manual_seed(0)
    return nn.Sequential(
        *[part for _ in range(depth) for part in (nn.Linear(8, 8), nn.BatchNorm1d(8))], nn.Linear(8, 1)
    )


def backward(engine, model, factor):
    with engine.forward():
        output = model(torch.full((4, 8), 0.1) + torch.arange(4.0)[:, None])
    engine.backward(output.float().square().mean() * factor)


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("losses", [("loss",), ("loss", "other")])
def test_a_step_waits_once_and_a_skipped_one_no_more(level, losses, transfers):
    model = net()
    model.register_buffer("mask", torch.ones(8))
    config = replace(level.config, scaling=level.config.scaling and LossScaling(initial=64.0))
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=1e-3), config, losses=losses)
    for step, factor in enumerate((1e-2, 1e-2, math.nan, math.nan, 1e-2, 1e-2)):
        transfers.clear()
        with Device() as passes:
            backward(engine, model, factor)
            backward(engine, model, factor)
        assert passes.waits == 0
        assert transfers == ["tolist"] * (step == 1), "whether the mask was written to, once"
        transfers.clear()
        with Device() as stepping:
            result = engine.step(clip_norm=1.0)
        assert stepping.waits == 0, "a number that was transferred is no tensor of the device"
        assert result.applied is not math.isnan(factor)
        assert transfers.count("cpu") == 1, "the rest reads what has been transferred"
        assert transfers.index("cpu") == 0


@pytest.mark.parametrize("level", [Level.BF16_MASTER, Level.FP16_MIXED])
def test_averages_masters_and_buffers_move_together_however_many_there_are(level):
    launches = []
    for depth in (2, 12):
        model = net(depth)
        config = replace(level.config, scaling=level.config.scaling and LossScaling(initial=64.0))
        engine = Engine(model, torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True), config)
        average = Ema(engine, 0.9)
        backward(engine, model, 1e-2)
        average.update(engine.step())
        backward(engine, model, 1e-2)
        with Device() as device:
            result = engine.step()
            average.update(result)
            with engine.forward():
                pass
        assert result.applied
        launches.append(device.launches)
    assert launches[0] == launches[1]
