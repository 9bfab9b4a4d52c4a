"""Modules that stay in FP32 at a low-precision level."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mpdeploy.amp import AmpConfig, Engine, Level, LossScaling, low_products
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.numerics.formats import Format

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:weights in .* without FP32 masters:RuntimeWarning")
LEVELS = [Level.BF16_MIXED, Level.BF16_MASTER, Level.BF16_TRUE, Level.FP16_MIXED, Level.FP16_MASTER]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        self.seen = []

    def forward(self, x):
        hidden = self.body(x)
        output = self.head(hidden)
        self.seen.append((hidden.dtype, output.dtype))
        return output


def config(level, *patterns):
    return AmpConfig(
        level.config.compute,
        level.config.weights,
        masters=level.config.masters,
        scaling=level.config.scaling and LossScaling(initial=64.0),
        fp32_modules=patterns,
    )


def made(precision, seed=0):
    torch.manual_seed(seed)
    model = Net()
    return Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), precision), model


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("pattern", ["head", "head.*", "h*d"])
def test_a_named_module_computes_in_fp32(level, pattern):
    engine, model = made(config(level, pattern))
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}[level.config.compute.value]
    assert model.head[0].weight.dtype == torch.float32
    for _ in range(2):
        with engine.forward():
            output = model(torch.randn(4, 4))
        engine.backward(output.float().square().mean())
        assert engine.step().applied
    assert model.seen == [(low, torch.float32)] * 2
    hidden = torch.randn(4, 8).to(low)
    with engine.forward():
        found = model.head(hidden)
    with engine.full_precision():
        assert torch.equal(found, model.head(hidden.float()))
    assert "forward" not in vars(model.head), "nothing stays on the model between passes"
    assert AmpConfig(**{**vars(level.config), "fp32_modules": (pattern,)}).name == level.value
    assert f"{pattern} in fp32" in str(engine.config)
    assert engine.state_dict()["fp32_modules"] == [pattern]


def test_one_layer_of_several_and_the_rest_stays_low():
    engine, model = made(config(Level.BF16_MASTER, "head.2"))
    assert {n: p.dtype for n, p in model.named_parameters() if n.endswith("weight")} == {
        "body.weight": torch.bfloat16,
        "head.0.weight": torch.bfloat16,
        "head.2.weight": torch.float32,
    }
    with engine.forward():
        output = model(torch.randn(4, 4))
    assert output.dtype == torch.float32
    engine.backward(output.sum())
    assert engine.step().applied


def test_it_is_more_exact_than_the_level_without_it():
    def error(precision):
        engine, model = made(precision)
        x = torch.randn(64, 4)
        with engine.forward():
            hidden = model.body(x)
            output = model.head(hidden)
        with torch.no_grad():
            return float((output.float() - model.head.float()(hidden.float())).norm())

    assert error(config(Level.BF16_MIXED, "head.*")) == 0
    assert error(Level.BF16_MIXED) > 0


@pytest.mark.parametrize("level", [Level.BF16_MASTER, Level.FP16_MIXED])
@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_anew_in_the_backward_pass_is_the_same(level, reentrant):
    found = []
    for checkpointed in (True, False):
        engine, model = made(config(level, "head.*"))
        torch.manual_seed(2)
        x = torch.randn(4, 4, requires_grad=True)
        with engine.forward():
            output = checkpoint(model, x, use_reentrant=reentrant) if checkpointed else model(x)
        engine.backward(output.float().square().mean())
        found.append((engine.step().grad_norm, model.head[2].weight.detach(), model.body.weight.detach()))
        assert set(model.seen) == {model.seen[0]}
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[0][2], found[1][2])


def test_a_copy_of_the_model_is_its_own():
    engine, model = made(config(Level.BF16_MIXED, "head"))
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.head[2].bias.fill_(9.0)
    with engine.forward():
        assert float(model(torch.zeros(1, 4)).detach().abs().max()) < 5
    assert float(copied(torch.zeros(1, 4)).detach().max()) > 5


def test_a_compiled_model_keeps_its_module_in_fp32(monkeypatch):
    monkeypatch.setattr(low_products, "has_units", lambda compute: True)
    torch.manual_seed(0)
    plain = Net()
    plain.seen = None
    plain.forward = lambda x: plain.head(plain.body(x))
    model = torch.compile(plain, backend="aot_eager")
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), config(Level.BF16_MIXED, "head"))
    with engine.forward():
        output = model(torch.randn(4, 4))
    assert output.dtype == torch.float32
    engine.backward(output.sum())
    assert engine.step().applied


def test_names_that_cannot_be_meant_are_refused():
    with pytest.raises(UsageError, match=r"no module is named like `tail\*`.*`body`, `head`"):
        made(config(Level.BF16_MIXED, "tail*"))
    with pytest.raises(UsageError, match=r"'head' are no names of modules; give a tuple"):
        AmpConfig(Format.BF16, fp32_modules="head")
    with pytest.raises(UsageError, match="at tf32 all products are rounded alike"):
        AmpConfig(Format.TF32, fp32_modules=("head",))
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    with pytest.raises(UsageError, match=r"weights of `self_attn.out_proj` without calling it; name .*`self_attn`"):
        Engine(layer, torch.optim.SGD(layer.parameters(), lr=0.1), config(Level.BF16_MIXED, "*.out_proj"))


@pytest.mark.parametrize("level", [Level.BF16_MIXED, Level.BF16_MASTER])
def test_an_attention_and_a_recurrence_in_fp32(level):
    torch.manual_seed(0)
    model = nn.ModuleDict({"attention": nn.MultiheadAttention(8, 2), "lstm": nn.LSTM(8, 8), "out": nn.Linear(8, 1)})
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), config(level, "attention", "lstm"))
    x = torch.randn(5, 2, 8).to(torch.bfloat16)
    with engine.forward():
        y, _ = model["attention"](x, x, x, need_weights=False)
        z, _ = model["lstm"](y)
        output = model["out"](z)
    assert (y.dtype, z.dtype, output.dtype) == (torch.float32, torch.float32, torch.bfloat16)
    engine.backward(output.float().sum())
    assert engine.step().applied


@pytest.mark.parametrize("level", [Level.BF16_MASTER, Level.FP16_MASTER])
def test_a_spectral_norm_that_mixes_formats_trains_in_fp32(level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3)))
    plain = copy.deepcopy(model)
    engine = Engine(plain, torch.optim.SGD(plain.parameters(), lr=0.1), level)
    with pytest.raises(ModelError, match=r"mixes number formats.*fp32_modules"), engine.forward():
        plain(torch.ones(2, 4))
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), config(level, "1"))
    for factor, applied in ((0.1, True), (float("inf"), False), (0.1, True)):
        before = model[1].parametrizations.weight[0]._u.clone()
        with engine.forward():
            output = model(torch.randn(4, 4))
        engine.backward(output.float().square().mean() * factor)
        assert engine.step().applied is applied
        assert torch.equal(model[1].parametrizations.weight[0]._u, before) is not applied
