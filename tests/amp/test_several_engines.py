"""Several engines on shared graphs: whichever zero_grad a user calls clears what it should, at every level."""

import itertools

import pytest
import torch
from torch import nn

from mpdeploy.amp import Engine, Level
from mpdeploy.errors import UsageError

torch.set_num_threads(1)
ALL = [Level.FP32, Level.BF16_MIXED, Level.FP16_MIXED, Level.BF16_MASTER, Level.FP16_MASTER]
CLEARING = {
    "model": lambda engine, model, optimizer: model.zero_grad(),
    "model, to zero": lambda engine, model, optimizer: model.zero_grad(set_to_none=False),
    "optimizer": lambda engine, model, optimizer: optimizer.zero_grad(),
    "optimizer, to zero": lambda engine, model, optimizer: optimizer.zero_grad(set_to_none=False),
    "engine": lambda engine, model, optimizer: engine.zero_grad(),
    "discard": lambda engine, model, optimizer: engine.discard(),
}


def net(*sizes):
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.LeakyReLU())][:-1])


def adversaries(level):
    torch.manual_seed(0)
    made = []
    for sizes in ((3, 8, 4), (4, 8, 1)):
        model = net(*sizes)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        made.append((Engine(model, optimizer, level), model, optimizer))
    return made


def adversarial_step(generator, critic, clear):
    (g, g_model, _), (d, d_model, d_optimizer) = generator, critic
    noise, real = torch.randn(16, 3), torch.randn(16, 4) + 1
    if clear:
        CLEARING[clear](d, d_model, d_optimizer)
    with g.forward():
        fake = g_model(noise)
    with d.forward():
        scores = d_model(real).float().mean() - d_model(fake.detach().float()).float().mean()
    d.backward(-0.01 * scores)
    d_result = d.step()
    with g.forward(), d.forward():
        loss = -0.01 * d_model(g_model(noise)).float().mean()
    g.backward(loss)
    return d_result, g.step()


@pytest.mark.parametrize("level", ALL)
@pytest.mark.parametrize("clear", CLEARING)
def test_a_critic_moves_by_its_own_gradients_alone(level, clear):
    generator, critic = adversaries(level)
    norms = []
    torch.manual_seed(1)
    for _ in range(3):
        d_result, g_result = adversarial_step(generator, critic, clear)
        norms.append((d_result.grad_norm, g_result.grad_norm))
    exact_generator, exact_critic = adversaries(Level.FP32)
    torch.manual_seed(1)
    for found in norms:
        exact = [r.grad_norm for r in adversarial_step(exact_generator, exact_critic, "engine")]
        assert found == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("level", ALL)
@pytest.mark.parametrize("clear", CLEARING)
def test_a_step_after_an_exception_is_its_own(level, clear):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 1, bias=False))
    nn.init.zeros_(model[0].weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = Engine(model, optimizer, level)

    def micro(x, fails=False):
        with engine.forward():
            output = model(x)
            if fails:
                raise MemoryError
        engine.backward(0.1 * output.float().sum())

    micro(torch.full((1, 4), 4.0))
    with pytest.raises(MemoryError):
        micro(torch.ones(1, 4), fails=True)
    CLEARING[clear](engine, model, optimizer)
    micro(torch.ones(1, 4))
    assert engine.step().grad_norm == pytest.approx(0.2, rel=1e-2)


@pytest.mark.parametrize("level", ALL)
def test_a_discarded_step_leaves_nothing_behind(level):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, level)
    before = engine.state_dict()
    with engine.forward():
        output = model(torch.randn(8, 4))
    engine.backward(output.float().sum() * float("inf"))
    engine.discard()
    after = engine.state_dict()
    assert all(torch.equal(after["model"][name], tensor) for name, tensor in before["model"].items())
    assert after["scales"] == before["scales"]
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(UsageError, match="a step without gradients"):
        engine.step()
    with engine.forward():
        output = model(torch.randn(8, 4))
    engine.backward(output.float().square().mean() * 1e-3)
    assert engine.step().applied, "the overflow was discarded, too"


@pytest.mark.parametrize("level", ALL)
@pytest.mark.parametrize("clear", ["model", "optimizer", "engine"])
def test_an_overflow_that_was_cleared_is_forgotten(level, clear):
    model = net(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, level)
    for factor in (float("inf"), 1e-2):
        CLEARING[clear](engine, model, optimizer)
        with engine.forward():
            output = model(torch.ones(1, 4))
        engine.backward(output.float().sum() * factor)
    assert engine.step().applied


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.actor, self.critic = net(4, 8), net(8, 2), net(8, 1)

    def forward(self, x):
        hidden = self.trunk(x)
        return self.actor(hidden), self.critic(hidden)


@pytest.mark.parametrize("level", ALL)
def test_two_engines_on_one_model_step_after_both_losses(level):
    found = []
    for precision in (None, level):
        torch.manual_seed(0)
        model = ActorCritic()
        first = torch.optim.SGD([*model.trunk.parameters(), *model.actor.parameters()], lr=0.1)
        second = torch.optim.SGD(model.critic.parameters(), lr=0.1)
        x = torch.randn(16, 4)
        if precision is None:
            policy, value = model(x)
            (0.1 * policy.square().mean()).backward(retain_graph=True)
            (0.1 * (value - 1).square().mean()).backward()
            first.step()
            second.step()
            found.append(model.state_dict())
            continue
        actor, critic = Engine(model, first, precision), Engine(model, second, precision)
        with actor.forward(), critic.forward():
            policy, value = model(x)
        actor.backward(0.1 * policy.float().square().mean(), retain_graph=True)
        critic.backward(0.1 * (value.float() - 1).square().mean())
        assert actor.step().applied
        assert critic.step().applied
        found.append({**critic.state_dict()["model"], **{
            name: tensor for name, tensor in actor.state_dict()["model"].items() if not name.startswith("critic")
        }})  # fmt: skip
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("level", ALL)
def test_a_teacher_that_is_evaluated_under_an_engine_stays_as_it_is(level):
    torch.manual_seed(0)
    teacher, student = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).eval(), net(4, 2)
    t = Engine(teacher, torch.optim.SGD(teacher.parameters(), lr=0.1), level)
    s = Engine(student, torch.optim.SGD(student.parameters(), lr=0.1), level)
    before = t.state_dict()["model"]
    for _ in range(3):
        with torch.no_grad(), t.forward():
            target = teacher(torch.ones(3, 4))
        with s.forward():
            output = student(torch.ones(3, 4))
        s.backward((output.float() - target.float()).square().mean() * 0.1)
        assert s.step().applied
    assert all(torch.equal(tensor, before[name]) for name, tensor in t.state_dict()["model"].items())
