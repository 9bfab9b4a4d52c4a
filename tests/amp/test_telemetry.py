"""Telemetry against what can be counted by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from mpdeploy import records
from mpdeploy.amp import Engine, Level, Telemetry
from mpdeploy.amp.telemetry import format_judged, shares_of
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.telemetry import Shares, StepLine

torch.set_num_threads(1)


@given(st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=50), st.sampled_from([Format.FP16, Format.BF16]))
def test_shares_are_those_of_a_real_cast(values, target):
    magnitude = np.array(values, dtype=np.float32)
    with np.errstate(over="ignore"):
        cast = magnitude.astype(target.dtype).astype(np.float64)
    below = (cast != 0) & (magnitude.astype(np.float64) < target.smallest_normal)
    expected = Shares((cast == 0).mean(), below.mean(), np.isinf(cast).mean())
    assert shares_of(magnitude.astype(np.float64), target) == expected


def test_nan_and_infinity_count_as_overflow():
    assert shares_of(np.array([np.nan, np.inf, 1.0, 0.0]), Format.FP16) == Shares(0.25, 0.0, 0.5)


def run(model, level, losses, *, interval=1, x=None, **options):
    lines: list[StepLine] = []
    telemetry = Telemetry(model, format_judged(level.config), lines.append, interval=interval, **options)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=1e-3), level, observer=telemetry)
    x = torch.ones(2, 4) if x is None else x
    for factor in losses:
        with engine.forward():
            output = model(x)
        engine.backward(output.float().mean() * factor)
        engine.step()
    return lines


class TwoLayers(nn.Module):
    """Two parameters whose gradients are known: d(mean)/d(big) = 2^-3, d(mean)/d(small) = 2^-26, over 2 outputs."""

    def __init__(self):
        super().__init__()
        self.big, self.small = nn.Linear(4, 1, bias=False), nn.Linear(4, 1, bias=False)

    def forward(self, x):
        return self.big(x / 8) + self.small(x) * 2.0**-26


def test_it_tells_what_the_scale_rescues():
    (line,) = run(TwoLayers(), Level.FP16_MIXED, [1.0])
    layers = {layer.name: layer for layer in line.sample.layers}
    assert layers["big"].with_scale == layers["big"].without_scale == Shares(0.0, 0.0, 0.0)
    assert layers["small"].without_scale == Shares(1.0, 0.0, 0.0)
    assert layers["small"].with_scale == Shares(0.0, 0.0, 0.0)
    assert layers["small"].elements == 4
    at = {line.sample.lowest + i: share for i, share in enumerate(line.sample.exponents) if share}
    assert at == {-3: 0.5, -26: 0.5}


def test_the_activations_of_every_module_are_told():
    (line,) = run(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), Level.FP32, [1.0])
    ranges = {r.module: r for r in line.sample.activations}
    assert set(ranges) == {"(input)", "0", "1", ""}
    assert (ranges["(input)"].low, ranges["(input)"].high) == (1.0, 1.0)
    assert ranges["1"].low == max(0.0, ranges["0"].low)
    assert ranges["1"].high == max(0.0, ranges["0"].high)
    assert (ranges["0"].rank, ranges["0"].calls, ranges["0"].nonfinite) == (2, 1, 0)


def test_skips_and_scale_changes_are_told_between_looks():
    model = nn.Linear(4, 1)
    lines = run(model, Level.FP16_MIXED, [1e-3, 1e-3, math.inf, math.inf, 1e-3, 1e-3], interval=4)
    assert [(line.step, line.sample is not None, line.skipped, line.skips, line.streak) for line in lines] == [
        (0, True, False, 0, 0),
        (2, False, True, 1, 1),
        (3, False, True, 2, 2),
        (4, True, False, 2, 0),
    ]
    assert [line.scale_after for line in lines] == [65536, 32768, 16384, 16384]
    assert lines[1].loss is None
    assert lines[3].grad_norm > 0
    for line in lines:
        assert records.from_json(StepLine, records.to_json(line), "here") == line


def test_somebody_else_may_count_the_steps():
    (line,) = run(nn.Linear(4, 1), Level.FP16_MIXED, [math.inf], place=lambda: (8, 3))
    assert (line.step, line.skips) == (8, 4)


def test_it_changes_nothing_and_leaves_no_hooks():
    states = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        x = torch.randn(16, 4)
        if watched:
            run(model, Level.BF16_MASTER, [1.0] * 5, x=x)
        else:
            engine = Engine(model, torch.optim.SGD(model.parameters(), lr=1e-3), Level.BF16_MASTER)
            for _ in range(5):
                with engine.forward():
                    output = model(x)
                engine.backward(output.float().mean())
                engine.step()
        states.append(model.state_dict())
        assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())


def test_large_gradients_are_sampled_evenly():
    layer = nn.Linear(1000, 50, bias=False)
    x = torch.zeros(2, 1000)
    x[:, ::2] = 1.0  # every second gradient element is zero
    (line,) = run(layer, Level.FP32, [1.0], x=x)
    (only,) = line.sample.layers
    assert only.elements == 50_000
    assert only.with_scale.zero == pytest.approx(0.5, abs=0.01)
    with pytest.raises(UsageError, match="telemetry every 0 steps"):
        Telemetry(layer, Format.FP16, lambda line: None, interval=0)
