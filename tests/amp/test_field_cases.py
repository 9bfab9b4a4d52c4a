"""Faults that people met with mixed-precision training elsewhere; each must not happen here, or be told."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from mpdeploy.amp import AmpConfig, Engine, Level, low_products
from mpdeploy.errors import ModelError, TrainingDiverged, UsageError
from mpdeploy.numerics.formats import Format

torch.set_num_threads(1)


def one_step(engine, model, x, loss, **options):
    with engine.forward():
        output = model(x)
    engine.backward(loss(output.float()))
    return engine.step(**options)


def test_p1_a_loss_scale_does_not_halve_for_ever_in_silence():
    layer = nn.Linear(4, 1)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=0.1), Level.FP16_MIXED)
    scales = []

    def train():
        for _ in range(200):
            result = one_step(engine, layer, torch.ones(2, 4), lambda y: y.square().mean() * 1e20)
            scales.append(result.scale_after)

    with pytest.raises(TrainingDiverged, match=r"steps in a row were skipped and the loss scale is at its floor of 1"):
        train()
    assert len(scales) < 20
    assert min(scales) >= 1


def test_p2_clipping_is_in_unscaled_units():
    layer = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(layer.weight)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=1.0), Level.FP16_MIXED)
    one_step(engine, layer, torch.ones(1, 4), lambda y: 0.1 * y.sum(), clip_norm=1.0)
    assert float(layer.weight.detach().norm()) == pytest.approx(0.2, rel=1e-3)


def test_p3_the_scale_is_in_the_saved_state_even_before_the_first_step():
    layer = nn.Linear(4, 1)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=0.1), Level.FP16_MIXED)
    assert engine.state_dict()["scales"] == {"loss": [65536.0, 0, 0]}
    for _ in range(5):
        one_step(engine, layer, torch.ones(2, 4), lambda y: y.sum() * math.inf)
    again = Engine(layer, torch.optim.SGD(layer.parameters(), lr=0.1), Level.FP16_MIXED)
    again.load_state_dict(engine.state_dict())
    assert again.scale.scale == 2048
    state = engine.state_dict()
    del state["scales"]
    with pytest.raises(UsageError, match="saved state lacks scales"):
        again.load_state_dict(state)


def test_p3_half_masters_are_refused():
    layer = nn.Linear(4, 1)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=0.1), Level.FP16_MASTER)
    state = engine.state_dict()
    state["model"]["weight"] = state["model"]["weight"].half()
    with pytest.raises(UsageError, match=r"`weight` is torch\.float16"):
        engine.load_state_dict(state)


def test_p4_an_optimizer_without_gradients_stands_still():
    nets = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.1) for net in nets]
    engine = Engine(nets, optimizers, Level.FP16_MIXED)
    before = nets[1].weight.detach().clone()
    assert one_step(engine, nets[0], torch.ones(1, 2), lambda y: y.sum() * 0.1).applied
    assert torch.equal(nets[1].weight, before)


def test_p5_accumulating_with_clipping_unscales_once():
    layer = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(layer.weight)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=1.0), Level.FP16_MIXED)
    for _ in range(2):
        with engine.forward():
            output = layer(torch.ones(1, 4))
        engine.backward(output.float().sum() / 2 * 0.1)
    result = engine.step(clip_norm=0.1)
    assert result.grad_norm == pytest.approx(0.2, rel=1e-3)
    assert float(layer.weight.detach().norm()) == pytest.approx(0.1, rel=1e-3)
    with pytest.raises(UsageError, match="a step without gradients"):
        engine.step()


def test_p6_half_parameters_get_fp32_masters_or_are_refused_with_the_way_out():
    layer = nn.Linear(4, 1).half()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"`weight` is given in fp16.*train it at fp16-master"):
        Engine(layer, optimizer, Level.FP16_MIXED)
    engine = Engine(layer, optimizer, Level.FP16_MASTER)
    assert {p.dtype for group in optimizer.param_groups for p in group["params"]} == {torch.float32}
    assert one_step(engine, layer, torch.ones(1, 4), lambda y: y.sum() * 0.1).applied
    normed = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).half()
    Engine(normed, torch.optim.SGD(normed.parameters(), lr=0.1), Level.FP16_MASTER)
    assert normed[1].weight.dtype == torch.float32


def test_p7_bf16_has_no_scaler_and_fp16_none_without():
    assert all((level.config.scaling is None) is (level.config.compute is not Format.FP16) for level in Level)
    with pytest.raises(UsageError, match="FP16 without loss scaling"):
        AmpConfig(Format.FP16)


def test_p8_adams_eps_does_not_vanish_and_small_updates_add_up():
    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    engine = Engine(layer, torch.optim.Adam(layer.parameters(), lr=0.1), Level.FP16_MASTER)
    assert one_step(engine, layer, torch.zeros(1, 1), lambda y: y.sum() * 0.1).applied
    assert float(engine.named_weights()["weight"].detach()) == 1.0, "a zero gradient divided by eps is zero, not NaN"

    layer = nn.Linear(1, 1, bias=False)
    nn.init.ones_(layer.weight)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=1e-3), Level.FP16_MASTER)
    for _ in range(1000):
        one_step(engine, layer, torch.ones(1, 1), lambda y: y.sum() * 0.1)
    assert float(engine.named_weights()["weight"].detach()) == pytest.approx(0.9, abs=1e-3)


def test_p10_a_forward_pass_without_gradients_does_not_poison_the_next():
    layer = nn.Linear(4, 1)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=0.1), Level.FP16_MIXED)
    with engine.forward():
        with torch.no_grad():
            layer(torch.ones(1, 4))
        output = layer(torch.ones(1, 4))
    assert output.grad_fn is not None
    engine.backward(output.float().sum() * 0.1)
    assert engine.step().grad_norm > 0


def test_p11_a_schedule_stands_still_on_skipped_steps():
    layer = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    engine = Engine(layer, optimizer, Level.FP16_MIXED)
    for _ in range(10):
        if one_step(engine, layer, torch.full((1, 4), math.inf), lambda y: y.sum()).applied:
            schedule.step()
    assert schedule.get_last_lr() == [1.0]


def test_p12_a_custom_function_that_mixes_formats_is_told_the_remedy():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx, gradient):
            x, w = ctx.saved_tensors
            return gradient @ w.T, x.T @ gradient

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return Product.apply(x, self.weight)

    model = Model()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), Level.FP16_MIXED)
    with engine.forward():
        output = model(torch.ones(2, 4))
    with pytest.raises(ModelError, match=r"mixes number formats.*custom_fwd"):
        engine.backward(output.float().sum())


@pytest.mark.parametrize(
    "loss",
    [
        lambda y: functional.binary_cross_entropy(y.sigmoid(), torch.ones_like(y)),
        lambda y: functional.binary_cross_entropy_with_logits(y, torch.ones_like(y)),
        lambda y: functional.nll_loss(y.log_softmax(-1), torch.zeros(len(y), dtype=torch.long)),
        lambda y: functional.ctc_loss(
            y.log_softmax(-1)[:, None], torch.tensor([[1, 2]]), torch.tensor([len(y)]), torch.tensor([2])
        ),
    ],
)
def test_p13_losses_that_half_precision_breaks_run_on_fp32_outputs(loss):
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    with torch.no_grad():
        layer.weight *= 30  # logits so large that FP16 would round the loss to 0 or infinity
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=0.1), Level.FP16_MIXED)
    x = torch.randn(8, 4)
    while not (result := one_step(engine, layer, x, loss)).applied:
        pass
    assert 0 < result.grad_norm < 1e3


@pytest.mark.parametrize(("level", "units"), [("fp16-mixed", False), ("fp16-mixed", True), ("bf16-mixed", False)])
def test_an_lstm_trains_on_a_processor_without_its_kernel(level, units, monkeypatch):
    monkeypatch.setattr(low_products, "has_units", lambda compute: units)
    torch.manual_seed(0)
    model, x = nn.LSTM(4, 8), torch.randn(3, 2, 4)
    expected, _ = model(x)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), level)
    with engine.forward():
        output, _ = model(x)
    assert 0 < float((output - expected).detach().abs().max()) < 2e-2  # its products were rounded
    engine.backward(output.float().square().sum())
    assert engine.step().applied
    assert torch.backends.mkldnn.enabled


def test_an_operator_that_the_processor_cannot_do_in_fp16_is_told_with_the_way_out():
    # An error of oneDNN's own form, whatever this processor can do.
    class NoKernel(nn.Linear):
        def forward(self, x):
            raise RuntimeError("could not create a primitive descriptor for the LSTM. Run with ONEDNN_VERBOSE=all")

    model = NoKernel(2, 2)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), Level.FP16_MIXED)
    with pytest.raises(ModelError, match=r"no fp16 kernel.*bf16 level"), engine.forward():
        model(torch.ones(1, 2))
    with pytest.raises(RuntimeError, match="other"), engine.forward():
        raise RuntimeError("other")
