"""Several losses, each with a scale of its own."""

import pytest
import torch
from torch import nn

from mpdeploy.amp import Engine, Level
from mpdeploy.errors import UsageError

torch.set_num_threads(1)


def two_heads() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.ModuleDict({"body": nn.Linear(4, 8), "a": nn.Linear(8, 1), "b": nn.Linear(8, 1)}), torch.randn(16, 4)


def losses(model, x):
    body = model["body"](x).relu()
    return model["a"](body).float().square().mean(), model["b"](body).float().square().mean()


@pytest.mark.parametrize("level", [Level.FP16_MIXED, Level.FP16_MASTER, Level.BF16_MASTER, Level.FP32])
def test_gradients_of_several_losses_add_up_in_true_units(level):
    found = []
    for names in (("loss",), ("a", "b")):
        model, x = two_heads()
        engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), level, losses=names)
        with engine.forward():
            a, b = losses(model, x)
        if len(names) == 1:
            engine.backward(a + b)
        else:
            engine.backward(a, of="a")
        if len(names) == 2:
            with engine.forward():
                a, b = losses(model, x)
            engine.backward(b, of="b")
        found.append((engine.step(clip_norm=0.5), engine.state_dict()["model"]))
    (one, weights), (two, also) = found
    assert two.grad_norm == pytest.approx(one.grad_norm, rel=5e-3)
    assert [outcome.name for outcome in two.losses] == ["a", "b"]
    for name in weights:
        torch.testing.assert_close(also[name], weights[name], rtol=5e-3, atol=1e-3)


def test_only_the_scale_of_the_loss_that_overflowed_backs_off():
    model, x = two_heads()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), Level.FP16_MIXED, losses=("a", "b"))
    before = engine.state_dict()["model"]
    with engine.forward():
        a, _ = losses(model, x)
    engine.backward(a, of="a")
    with engine.forward():
        _, b = losses(model, x)
    engine.backward(b * 1e6, of="b")
    result = engine.step()
    assert not result.applied
    assert [(o.name, o.finite, o.scale_after / o.scale_before) for o in result.losses] == [
        ("a", True, 1.0),
        ("b", False, 0.5),
    ]
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.state_dict()["model"].items())
    assert {name.split(".")[0] for name in result.nonfinite} == {"body", "b"}


def test_a_loss_that_takes_no_part_keeps_its_scale():
    model, x = two_heads()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), Level.FP16_MIXED, losses=("a", "b"))
    with engine.forward():
        a, _ = losses(model, x)
    engine.backward(a * 1e8, of="a")
    assert [o.name for o in engine.step().losses] == ["a"]
    scales = engine.state_dict()["scales"]
    assert scales["a"][0] == scales["b"][0] / 2


def test_scales_travel_by_the_names_of_their_losses():
    model, _ = two_heads()

    def make(*names):
        return Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), Level.FP16_MIXED, losses=names)

    state = make("a", "b").state_dict()
    state["scales"]["b"] = [128.0, 7, 0]
    engine = make("a", "b")
    engine.load_state_dict(state)
    assert engine.state_dict()["scales"] == state["scales"]
    with pytest.raises(UsageError, match=r"no loss scale for \['a', 'c'\]"):
        make("a", "c").load_state_dict(state)
    with pytest.raises(UsageError, match="there is no loss `c`"):
        engine.backward(torch.ones((), requires_grad=True), of="c")
    with pytest.raises(UsageError, match="name at least one"):
        make("a", "a")
