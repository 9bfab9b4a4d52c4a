"""Evaluations under ``engine.forward()`` begin no step."""

import math

import pytest
import torch
from torch import nn

from mpdeploy.amp import Engine, Format, Level, Telemetry

torch.set_num_threads(1)
ALL = [Level.FP32, Level.BF16_MIXED, Level.FP16_MIXED, Level.BF16_MASTER, Level.FP16_MASTER]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


def made(level, **options):
    model = net()
    return Engine(model, torch.optim.SGD(model.parameters(), lr=0.01), level, **options), model


def step(engine, model, factor=0.1):
    with engine.forward():
        output = model(torch.randn(8, 4))
    engine.backward(output.float().square().mean() * factor)
    return engine.step()


def no_grad_outside(engine, model):
    with torch.no_grad(), engine.forward():
        model(torch.full((8, 4), 50.0))


def no_grad_inside(engine, model):
    with engine.forward(), torch.no_grad():
        model(torch.full((8, 4), 50.0))


def inference_outside(engine, model):
    with torch.inference_mode(), engine.forward():
        model(torch.full((8, 4), 50.0))


def inference_inside(engine, model):
    with engine.forward(), torch.inference_mode():
        model(torch.full((8, 4), 50.0))


def evaluation_mode(engine, model):
    model.eval()
    with engine.forward():
        model(torch.full((8, 4), 50.0))
    model.train()


EVALUATIONS = [no_grad_outside, no_grad_inside, inference_outside, inference_inside, evaluation_mode]


@pytest.mark.parametrize("level", ALL)
@pytest.mark.parametrize("evaluate", EVALUATIONS)
@pytest.mark.parametrize("trained", [False, True])
def test_what_happens_after_an_evaluation_is_not_undone_by_a_skip(level, evaluate, trained):
    engine, model = made(level)
    if trained:
        assert step(engine, model).applied
    evaluate(engine, model)
    model[1].running_mean.fill_(7.0)  # as by a loop's own update of the statistics
    assert not step(engine, model, math.inf).applied
    assert model[1].running_mean.tolist() == [7.0] * 4
    assert step(engine, model).applied


@pytest.mark.parametrize("evaluate", EVALUATIONS)
def test_telemetry_shows_the_training_step_alone(evaluate):
    lines, model = [], net()
    telemetry = Telemetry(model, Format.FP16, lines.append, interval=1)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.01), Level.BF16_MIXED, observer=telemetry)
    evaluate(engine, model)
    assert step(engine, model).applied
    (seen,) = [r for r in lines[0].sample.activations if r.module == "(input)"]
    assert (seen.calls, seen.high < 10) == (1, True)


@pytest.mark.parametrize("level", ALL)
def test_training_in_evaluation_mode_works_and_skips(level):
    lines, model = [], net().eval()  # fine-tuning with frozen statistics
    telemetry = Telemetry(model, Format.FP16, lines.append, interval=1)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.01), level, observer=telemetry)
    before = model[1].running_mean.clone()
    assert [step(engine, model, factor).applied for factor in (0.1, math.inf, 0.1)] == [True, False, True]
    assert torch.equal(model[1].running_mean, before)
    assert [line.skipped for line in lines] == [False, True, False]


@pytest.mark.parametrize("level", ALL)
def test_a_skip_after_a_pass_without_the_engine_undoes_nothing_of_it(level):
    engine, model = made(level)
    assert step(engine, model).applied
    model[1].running_mean.fill_(7.0)
    loss = torch.stack([parameter.float().square().sum() for parameter in model.parameters()]).sum()
    engine.backward(loss * math.inf)
    assert not engine.step().applied
    assert model[1].running_mean.tolist() == [7.0] * 4


@pytest.mark.parametrize("level", ALL)
def test_an_evaluation_in_the_middle_of_a_step_does_not_end_it(level):
    engine, model = made(level)
    before = model[1].running_mean.clone()
    with engine.forward():
        output = model(torch.randn(8, 4))
    evaluation_mode(engine, model)
    engine.backward(output.float().sum() * math.inf)
    no_grad_outside(engine, model)
    assert not engine.step().applied
    assert torch.equal(model[1].running_mean, before)
