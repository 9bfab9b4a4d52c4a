"""What a careful user does between backward and step means the same at every level."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from mpdeploy.amp import AmpConfig, Engine, Format, Level, LossScaling
from mpdeploy.errors import UsageError

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:weights in .* without FP32 masters:RuntimeWarning")
LEVELS = list(Level)
MASTERS = [Level.BF16_MASTER, Level.FP16_MASTER]
SCALED = [Level.FP16_MIXED, Level.FP16_MASTER]


def scaled(level):
    """The level with a scale that these gradients do not overflow at."""
    return replace(level.config, scaling=level.config.scaling and LossScaling(initial=256.0))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))


def started(level, model=None, lr=1.0):
    """An engine with the gradients of one backward pass, about 0.01 to 2 each."""
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    engine = Engine(model, optimizer, scaled(level))
    once(engine, model)
    return engine, model, optimizer


def once(engine, model, **options):
    torch.manual_seed(1)
    x = torch.randn(4, 6)
    with engine.forward():
        output = model(x)
    engine.backward((output.float() - 3).square().mean(), **options)


def exact_gradients():
    model = net()
    torch.manual_seed(1)
    (model(torch.randn(4, 6)) - 3).square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def in_model(model, optimizer):
    return list(model.parameters())


def in_groups(model, optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


SIDES = pytest.mark.parametrize("side", [in_model, in_groups])


@pytest.mark.parametrize("level", LEVELS)
@SIDES
def test_gradients_are_in_true_units_on_both_sides(level, side):
    engine, model, optimizer = started(level)
    for parameter, expected in zip(side(model, optimizer), exact_gradients(), strict=True):
        torch.testing.assert_close(parameter.grad.float(), expected, rtol=0.05, atol=5e-3)
        if engine.config.masters:
            assert parameter.grad.dtype == torch.float32


CHANGES = {
    "clamp in place": lambda ps: [p.grad.clamp_(-0.01, 0.01) for p in ps],
    "clamp the data": lambda ps: [p.grad.data.clamp_(-0.01, 0.01) for p in ps],
    "clip by value": lambda ps: nn.utils.clip_grad_value_(ps, 0.01),
    "replace": lambda ps: [setattr(p, "grad", p.grad.clamp(-0.01, 0.01)) for p in ps],
    "set to a number": lambda ps: [p.grad.fill_(0.01) for p in ps],
}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("change", CHANGES)
@SIDES
def test_what_was_changed_is_what_the_step_uses(level, change, side):
    engine, model, optimizer = started(level)
    before = {name: tensor.clone() for name, tensor in engine.named_weights().items()}
    engine.unscale()
    CHANGES[change](side(model, optimizer))
    result = engine.step()
    assert result.applied
    moved = torch.cat([(before[n] - t).flatten().float() for n, t in engine.named_weights().items()]).detach()
    assert moved.abs().max() == pytest.approx(0.01, rel=0.3 if not engine.config.masters else 1e-3)


@pytest.mark.parametrize("level", LEVELS)
@SIDES
def test_clipping_by_norm_sees_every_gradient(level, side):
    engine, model, optimizer = started(level)
    parameters = side(model, optimizer)
    true = torch.cat([g.flatten() for g in exact_gradients()]).norm()
    assert float(nn.utils.clip_grad_norm_(parameters, 0.5)) == pytest.approx(float(true), rel=0.02)
    assert engine.step().grad_norm == pytest.approx(0.5, rel=1e-2)


@pytest.mark.parametrize("level", [Level.FP32, *SCALED, Level.BF16_MASTER])
def test_groups_are_clipped_each_by_itself_and_a_gradient_can_be_dropped(level):
    model = net()
    groups = [{"params": model[0].parameters()}, {"params": [*model[1].parameters(), *model[3].parameters()]}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    engine = Engine(model, optimizer, scaled(level))
    once(engine, model)
    for group, limit in zip(optimizer.param_groups, (0.1, 0.2), strict=True):
        nn.utils.clip_grad_norm_(group["params"], limit)
    assert engine.step().grad_norm == pytest.approx(math.hypot(0.1, 0.2), rel=1e-3)
    kept = engine.named_weights()["0.weight"].detach().clone()
    once(engine, model)
    model[0].weight.grad = None
    engine.step()
    assert torch.equal(engine.named_weights()["0.weight"], kept)


@pytest.mark.parametrize("level", LEVELS)
def test_clamping_does_not_hide_an_overflow(level):
    engine, model, _ = started(level)
    before = copy.deepcopy(engine.state_dict()["model"])
    with engine.forward():
        output = model(torch.full((1, 6), math.inf))
    engine.backward(output.float().sum())
    engine.unscale()
    for parameter in model.parameters():
        parameter.grad = parameter.grad.nan_to_num().clamp(-1, 1)
    result = engine.step()
    assert not result.applied
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.state_dict()["model"].items())


@pytest.mark.parametrize("level", MASTERS)
def test_two_different_replacements_are_refused(level):
    engine, model, optimizer = started(level)
    model[0].weight.grad = torch.zeros_like(model[0].weight.grad)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(8, 6)
    with pytest.raises(UsageError, match=r"replaced in the model and in the optimizer.*either over"):
        engine.step()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("late", [False, True])
def test_hooks_on_parameters_see_and_return_true_units(level, late):
    model, seen = net(), []

    def hook(gradient):
        seen.append(gradient.abs().max().item())
        return gradient.clamp(-0.01, 0.01)

    handle = None if late else model[3].weight.register_hook(hook)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), scaled(level))
    handle = handle or model[3].weight.register_hook(hook)
    once(engine, model)
    once(engine, model)
    assert seen == pytest.approx([float(exact_gradients()[4].abs().max())] * 2, rel=0.05)
    assert float(model[3].weight.grad.abs().max()) == pytest.approx(0.02, rel=2e-2)
    handle.remove()
    once(engine, model)
    assert len(seen) == 2
    assert engine.step().applied


@pytest.mark.parametrize("level", [Level.FP32, *SCALED, Level.BF16_MASTER])
def test_hooks_after_accumulation_see_true_units(level):
    engine, model, _ = started(level)

    def clamp(parameter):
        parameter.grad.clamp_(-0.01, 0.01)

    model[3].weight.register_post_accumulate_grad_hook(clamp)
    once(engine, model)
    assert float(model[3].weight.grad.abs().max()) == pytest.approx(0.01)
    assert engine.step().applied


@pytest.mark.parametrize("level", LEVELS)
def test_accumulating_gives_the_sum(level):
    engine, model, _ = started(level)
    once(engine, model)
    for parameter, expected in zip(model.parameters(), exact_gradients(), strict=True):
        torch.testing.assert_close(parameter.grad.float(), 2 * expected, rtol=0.05, atol=1e-2)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("losses", [("loss",), ("loss", "other")])
def test_two_losses_of_one_forward_pass(level, losses):
    model = net()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), scaled(level), losses=losses)
    torch.manual_seed(1)
    with engine.forward():
        output = model(torch.randn(4, 6)).float()
    error = (output - 3).square().mean()
    engine.backward(0.25 * error, retain_graph=True)
    engine.backward(0.75 * error, of=losses[-1])
    for parameter, expected in zip(model.parameters(), exact_gradients(), strict=True):
        torch.testing.assert_close(parameter.grad.float(), expected, rtol=0.05, atol=1e-2)
    assert engine.step().applied


@pytest.mark.parametrize("level", LEVELS)
def test_gradients_of_chosen_inputs_alone_in_true_units(level):
    model = net()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), scaled(level))
    x = torch.ones(2, 6, requires_grad=True)
    exact = torch.autograd.grad(net()(x).sum(), x)[0]
    for times in (1, 2):
        with engine.forward():
            output = model(x)
        engine.backward(output.float().sum(), inputs=[x])
        torch.testing.assert_close(x.grad, times * exact, rtol=0.05, atol=5e-3)
    assert all(parameter.grad is None for parameter in model.parameters())
    with engine.forward():
        output = model(x)
    engine.backward(output.float().sum(), inputs=[model[3].bias])
    assert model[0].weight.grad is None
    assert engine.step().applied


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True:UserWarning")
@pytest.mark.parametrize("level", [Level.FP32, Level.BF16_MIXED, *SCALED, Level.BF16_MASTER])
def test_a_penalty_on_the_parameters_own_gradients(level):
    def penalty(model):
        return sum(p.grad.square().sum() for p in model.parameters())

    exact = net()
    torch.manual_seed(1)
    (exact(torch.randn(4, 6)) - 3).square().mean().backward(create_graph=True)
    expected = torch.autograd.grad(penalty(exact), exact[3].weight)[0]
    model = net()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), scaled(level))
    once(engine, model, create_graph=True)
    loss = penalty(model)
    engine.zero_grad()
    engine.backward(loss)
    torch.testing.assert_close(model[3].weight.grad, expected, rtol=0.05, atol=0.05 * float(expected.abs().max()))
    assert engine.step().applied


@pytest.mark.parametrize("level", [Level.FP16_MIXED, Level.FP16_MASTER, Level.BF16_MASTER])
def test_sparse_gradients_can_be_looked_at_and_changed(level):
    table = nn.Embedding(10, 4, sparse=True)
    engine = Engine(table, torch.optim.SGD(table.parameters(), lr=1.0), scaled(level))
    for _ in range(2):
        with engine.forward():
            output = table(torch.tensor([3, 3, 7]))
        engine.backward(output.float().sum())
    assert table.weight.grad.to_dense()[3].tolist() == [4.0] * 4
    table.weight.grad = torch.clamp(table.weight.grad.to_dense(), max=1.0).to_sparse(1)
    before = engine.named_weights()["weight"].detach().clone()
    assert engine.step().grad_norm == pytest.approx(math.sqrt(8))
    assert (before - engine.named_weights()["weight"])[7].tolist() == pytest.approx([1.0] * 4)


@pytest.mark.parametrize("level", [Level.BF16_MIXED, Level.FP16_MIXED, Level.FP16_MASTER])
def test_gradients_of_parameters_without_an_optimizer_are_true_and_stay(level):
    model = net()
    engine = Engine(model, torch.optim.SGD(model[3].parameters(), lr=1.0), scaled(level))
    once(engine, model)
    torch.testing.assert_close(model[0].weight.grad, exact_gradients()[0], rtol=0.05, atol=5e-3)
    engine.step()
    assert model[0].weight.grad is not None
    assert model[3].weight.grad is None


def test_a_moment_in_another_format_and_complex_parameters_are_no_exception():
    layer = nn.Linear(4, 4)
    layer.wave = nn.Parameter(torch.full((4,), 1 + 1j))
    config = AmpConfig(Format.FP16, Format.FP16, momentum=Format.BF16, scaling=LossScaling(initial=256.0))
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9), config)
    with engine.forward():
        output = layer(torch.ones(1, 4))
    engine.backward((output.float() * layer.wave.abs()).sum() * 0.1)
    torch.testing.assert_close(layer.wave.grad.real, 0.1 * output[0].float().detach() / 2**0.5, rtol=1e-2, atol=1e-3)
    nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
    assert engine.step().grad_norm == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("level", LEVELS)
def test_a_loss_in_the_low_format_is_scaled_in_fp32(level):
    model = nn.Linear(4, 1)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), level)
    applied = []
    for _ in range(2):
        with engine.forward():
            loss = model(torch.ones(2, 4)).mean() * 1e-3
        engine.backward(loss)
        applied.append(engine.step().applied)
    # The gradient of an FP16 loss is the scale, and 65536 is none of its numbers; 32768 is.
    assert applied[1]


@pytest.mark.parametrize("level", [Level.FP32, Level.BF16_MIXED, Level.FP16_MIXED, Level.FP16_MASTER])
def test_weights_in_double_precision_train_beside_others(level):
    model = nn.Linear(4, 1)
    model.wide = nn.Parameter(torch.ones(1, dtype=torch.float64))
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), scaled(level))
    with engine.forward():
        output = model(torch.ones(2, 4))
    engine.backward((output.double() * model.wide).sum())
    assert engine.step(clip_norm=0.5).applied
    assert engine.named_weights()["wide"].dtype == torch.float64
    assert float(model.wide.detach()) != 1
