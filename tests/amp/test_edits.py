"""Edits of a model after the engine was made: each reaches what trains, or is refused with the way out."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, parametrize, prune, vector_to_parameters

from mpdeploy.amp import AmpConfig, Engine, Format, Level, LossScaling
from mpdeploy.errors import UsageError

torch.set_num_threads(1)
MASTERS = [Level.BF16_MASTER, Level.FP16_MASTER]
ALL = [Level.FP32, Level.BF16_MIXED, Level.FP16_MIXED, *MASTERS]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def made(level, lr=0.0):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return Engine(model, optimizer, level), model, optimizer


def step(engine, model):
    with engine.forward():
        output = model(torch.ones(2, 4))
    engine.backward(output.float().square().mean() * 0.1)
    return engine.step()


def truth(engine):
    return {name: tensor.clone() for name, tensor in engine.state_dict()["model"].items()}


def load(model, optimizer):
    torch.manual_seed(5)
    model.load_state_dict({name: torch.randn_like(t, dtype=torch.float32) for name, t in model.state_dict().items()})


def clamp(model, optimizer):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.clamp_(-0.1, 0.1)


def clamp_data(model, optimizer):
    for parameter in model.parameters():
        parameter.data.clamp_(-0.1, 0.1)


def clamp_groups(model, optimizer):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.data.clamp_(-0.1, 0.1)


def clamp_in_inference(model, optimizer):
    with torch.inference_mode():
        model[0].weight.clamp_(-0.1, 0.1)


def replace_data(model, optimizer):
    model[0].weight.data = torch.full((8, 4), 0.5, dtype=model[0].weight.dtype)


def reinitialise(model, optimizer):
    torch.manual_seed(6)
    nn.init.constant_(model[0].weight, 0.25)
    model[2].weight.data.fill_(-0.125)


def through_a_vector(model, optimizer):
    vector_to_parameters(torch.ones_like(parameters_to_vector(model.parameters())), model.parameters())


EDITS = [load, clamp, clamp_data, clamp_groups, clamp_in_inference, replace_data, reinitialise, through_a_vector]


@pytest.mark.parametrize("level", ALL)
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("trained", [False, True])
def test_an_edit_is_what_training_goes_on_from(level, edit, trained):
    engine, model, optimizer = made(level)
    if trained:
        step(engine, model)
    exact = net()
    edit(model, optimizer)
    edit(exact, torch.optim.SGD(exact.parameters()))
    step(engine, model)  # at a learning rate of 0 it moves nothing
    rounding = 0 if level not in MASTERS or edit in (load, clamp_groups) else engine.config.weights.unit_roundoff
    for name, expected in exact.state_dict().items():
        torch.testing.assert_close(truth(engine)[name], expected, rtol=1.01 * rounding, atol=rounding * 0.01)
        torch.testing.assert_close(
            model.state_dict()[name].float(), expected, rtol=1.01 * engine.config.weights.unit_roundoff, atol=1e-4
        )


@pytest.mark.parametrize("level", MASTERS)
def test_what_was_not_edited_keeps_all_its_digits(level):
    engine, model, _ = made(level)
    before = truth(engine)
    for parameter in model.parameters():
        parameter.data.clamp_(-0.3, 0.3)
    after = truth(engine)
    inside = before["0.weight"].abs() < 0.29
    assert 0 < int(inside.sum()) < inside.numel()
    assert torch.equal(after["0.weight"][inside], before["0.weight"][inside])
    assert after["0.weight"].abs().max() < 0.301


@pytest.mark.parametrize("level", MASTERS)
def test_reading_data_changes_nothing(level):
    engine, model, optimizer = made(level, lr=1e-4)
    step(engine, model)
    before = truth(engine)
    norms = [float(p.data.norm()) for p in model.parameters()]
    assert len(norms) == 4
    after = truth(engine)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    for group in optimizer.param_groups:  # a step that the engine does not take
        for master in group["params"]:
            master.grad = torch.ones_like(master)
    optimizer.step()
    _ = [p.data for p in model.parameters()]
    torch.testing.assert_close(truth(engine)["0.weight"], before["0.weight"] - 1e-4, rtol=0, atol=1e-8)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def test_a_step_of_the_users_own_reaches_the_low_weights(options):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    engine = Engine(model, optimizer, Level.BF16_MASTER)
    before = model[0].weight.detach().clone()
    with engine.forward():
        output = model(torch.ones(2, 4))
    engine.backward(output.float().square().mean())
    optimizer.step()
    optimizer.zero_grad()
    with engine.forward():
        model(torch.ones(2, 4))
    assert not torch.equal(model[0].weight, before)
    assert torch.equal(model[0].weight.float(), engine.named_weights()["0.weight"].bfloat16().float())


@pytest.mark.parametrize("level", ALL)
def test_pruning_goes_on_as_in_fp32(level):
    found = []
    for precision in (Level.FP32, level):
        engine, model, _ = made(precision, lr=0.1)
        step(engine, model)
        prune.random_unstructured(model[0], "weight", 0.5)
        torch.manual_seed(3)
        model[0].weight_mask.copy_(torch.rand(8, 4) < 0.5)
        for _ in range(3):
            assert step(engine, model).applied
        assert set(engine.state_dict()["model"]) > {"0.weight_orig", "0.weight_mask"}
        masked = model[0].weight_mask == 0
        prune.remove(model[0], "weight")
        assert (truth(engine)["0.weight"][masked] == 0).all()
        step(engine, model)
        found.append(truth(engine)["0.weight"])
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=1e-2)


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


@pytest.mark.parametrize("level", ALL)
def test_parametrizations_made_later_train(level):
    engine, model, _ = made(level, lr=0.1)
    parametrize.register_parametrization(model[0], "weight", Doubled())
    before = truth(engine)["0.parametrizations.weight.original"]
    assert step(engine, model).applied
    assert not torch.equal(truth(engine)["0.parametrizations.weight.original"], before)


@pytest.mark.parametrize("level", MASTERS)
def test_parameters_that_were_replaced_are_refused(level):
    engine, model, _ = made(level)
    model[0] = nn.Linear(4, 8)
    with pytest.raises(UsageError, match=r"no longer in the model; change the model before"), engine.forward():
        pass
    engine, model, _ = made(level)
    model.load_state_dict(net().state_dict(), assign=True)
    with pytest.raises(UsageError, match=r"load without assign=True"):
        step(engine, model)
    engine, model, _ = made(level)
    model.float()
    with pytest.raises(UsageError, match=r"converted or moved after the engine.*full_precision"):
        step(engine, model)


@pytest.mark.parametrize(("level", "low"), [(Level.BF16_MASTER, torch.bfloat16), (Level.FP16_MASTER, torch.float16)])
@pytest.mark.parametrize("how", ["group", "unfreeze"])
def test_low_weights_that_come_later_get_masters(level, low, how):
    model = net()
    model[0].to(low).requires_grad_(False)
    base = model[0].weight.float().clone()
    held = model.parameters() if how == "unfreeze" else model[2].parameters()
    optimizer = torch.optim.SGD(held, lr=1e-4)
    engine = Engine(model, optimizer, level)
    step(engine, model)
    model[0].requires_grad_(True)
    if how == "group":
        optimizer.add_param_group({"params": model[0].parameters(), "lr": 2e-4})
    for _ in range(5):
        assert step(engine, model).applied
    moved = (truth(engine)["0.weight"] - base).abs()
    assert 0 < float(moved.max()) < 1e-3
    assert model[0].weight.dtype == low
    assert {p.dtype for group in optimizer.param_groups for p in group["params"]} == {torch.float32}


@pytest.mark.parametrize("level", [Level.FP32, Level.BF16_MIXED, Level.FP16_MIXED, Level.FP16_MASTER])
def test_low_weights_that_come_later_are_refused_where_their_updates_would_be_lost(level):
    model = net()
    model[0].bfloat16().requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    engine = Engine(model, optimizer, level)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters()})
    with pytest.raises(UsageError, match=r"`0.weight` came to the optimizer in torch.bfloat16.*\.float\(\)"):
        step(engine, model)


@pytest.mark.parametrize("level", [*ALL, Level.BF16_TRUE])
@pytest.mark.filterwarnings("ignore:weights in .* without FP32 masters:RuntimeWarning")
def test_fp32_weights_that_come_later_train(level):
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    engine = Engine(model, optimizer, level)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": model[0].parameters()})
    before = truth(engine)["0.weight"]
    assert step(engine, model).applied
    assert not torch.equal(truth(engine)["0.weight"], before)


def test_copies_and_pickles_of_a_model_know_no_master():
    engine, model, _ = made(Level.BF16_MASTER)
    copied = copy.deepcopy(model)
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    for other in (copied, torch.load(stream, weights_only=False)):
        assert {type(parameter) for parameter in other.parameters()} == {nn.Parameter}
        assert torch.equal(other[0].weight, model[0].weight)
        with torch.no_grad():
            other[0].weight.zero_()
    assert truth(engine)["0.weight"].abs().max() > 0


def test_an_edit_leaves_other_weights_to_a_graph_that_still_needs_them():
    engine, model, _ = made(Level.BF16_MASTER)
    with engine.forward():
        output = model(torch.ones(2, 4))
    with torch.no_grad():
        model[0].bias.zero_()
    with engine.forward():
        model(torch.ones(2, 4))
    engine.backward(output.float().sum())
    assert engine.step().applied


def test_frozen_and_foreign_formats_stay_as_they_are():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).bfloat16().requires_grad_(False))
    config = AmpConfig(Format.FP16, Format.FP16, scaling=LossScaling.static(1.0))
    engine = Engine(model, torch.optim.SGD(model[0].parameters(), lr=0.1), config)
    with engine.forward():
        output = model(torch.ones(1, 4))
    engine.backward(output.float().sum())
    assert engine.step().applied
    assert model[1].weight.dtype == torch.bfloat16


@pytest.mark.parametrize("level", MASTERS)
@pytest.mark.parametrize("same", [True, False])
def test_a_second_engine_goes_on_where_the_first_one_was(level, same):
    engine, model, optimizer = made(level, lr=1e-4)
    step(engine, model)
    before = truth(engine)
    second = optimizer if same else torch.optim.SGD(model.parameters(), lr=1e-4)
    again = Engine(model, second, level)
    rounding = 0 if same else again.config.weights.unit_roundoff
    for name, tensor in truth(again).items():
        torch.testing.assert_close(tensor, before[name], rtol=rounding, atol=0)
    for _ in range(3):
        assert step(again, model).applied
    assert any(not torch.equal(truth(again)[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("level", MASTERS)
@pytest.mark.parametrize("evaluation", [torch.no_grad, torch.inference_mode])
def test_weights_that_stand_in_for_an_evaluation_cost_no_digits(level, evaluation):
    engine, model, optimizer = made(level, lr=1e-3)
    step(engine, model)
    before = truth(engine)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    with evaluation(), engine.forward():
        evaluated = model(torch.ones(1, 4))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.detach().copy_(kept[name])
    step(engine, model)
    expected, exact_model, _ = made(level, lr=1e-3)
    step(expected, exact_model)
    step(expected, exact_model)
    assert not torch.equal(evaluated, exact_model(torch.ones(1, 4).to(evaluated.dtype)))
    for name, tensor in truth(expected).items():
        assert torch.equal(truth(engine)[name], tensor)
        assert not torch.equal(tensor, before[name])
    for group in optimizer.param_groups:
        for master in group["params"]:
            master.data.zero_()
    with evaluation(), engine.forward():
        assert not model(torch.ones(1, 4)).any(), "what was done to the masters is evaluated"


@pytest.mark.parametrize("level", MASTERS)
@pytest.mark.parametrize("edited", ["model", "groups"])
def test_the_side_that_was_only_read_undoes_nothing(level, edited):
    engine, model, optimizer = made(level)
    step(engine, model)
    masters = [master for group in optimizer.param_groups for master in group["params"]]
    for read in (*model.parameters(), *masters):
        assert read.data.isfinite().all()
    for weight in model.parameters() if edited == "model" else masters:
        weight.data.clamp_(-0.125, 0.125)
    step(engine, model)
    for name, weight in truth(engine).items():
        assert float(weight.abs().max()) <= 0.125, name
    assert all(float(weight.detach().abs().max()) <= 0.125 for weight in model.parameters())
