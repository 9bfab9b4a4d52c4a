"""Models and optimizers that plain examples do not have: each trains as it should, or is refused in words."""

import math

import pytest
import torch
from torch import nn

from mpdeploy.amp import AmpConfig, Ema, Engine, Format, Level, LossScaling, Telemetry
from mpdeploy.errors import ModelError, TrainingDiverged, UsageError

torch.set_num_threads(1)


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def one_step(engine, model, x):
    with engine.forward():
        output = model(x)
    engine.backward(output.float().sum())
    return engine.step()


@pytest.mark.parametrize("precision", [AmpConfig(Format.FP16, scaling=LossScaling.static(128.0)), Level.FP16_MASTER])
def test_a_parameter_in_two_optimizers_is_unscaled_once_and_moved_by_both(precision):
    layer = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(layer.weight)
    engine = Engine(layer, [sgd(layer), sgd(layer)], precision)
    while not (result := one_step(engine, layer, torch.ones(1, 4))).applied:
        pass
    assert result.grad_norm == 2.0
    assert engine.named_weights()["weight"].tolist() == [[pytest.approx(-0.2)] * 4]
    assert layer.weight.tolist() == [[pytest.approx(-0.2, rel=1e-3)] * 4]


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.full((4,), 1 + 1j))
        self.mix = nn.Linear(4, 4)

    def forward(self, x):
        return self.mix(torch.fft.ifft(torch.fft.fft(x) * self.filter).real)


@pytest.mark.parametrize("level", [Level.BF16_MIXED, Level.BF16_MASTER, Level.FP16_MIXED])
def test_complex_parameters_keep_their_imaginary_parts(level):
    torch.manual_seed(0)
    model, lines = Spectral(), []
    engine = Engine(model, sgd(model), level, observer=Telemetry(model, Format.FP16, lines.append, interval=1))
    average = Ema(engine, 0.5)
    while not (result := one_step(engine, model, torch.randn(3, 4))).applied:
        pass
    average.update(result)
    engine.load_state_dict(engine.state_dict())
    assert average.state_dict()["filter"].dtype == torch.complex64
    assert (average.state_dict()["filter"].imag != 0).all()
    assert "filter" in {layer.name for layer in lines[0].sample.layers}


def test_buffers_of_other_formats_keep_them_and_their_state_is_taken_back():
    layer = nn.Linear(4, 1)
    layer.register_buffer("wide", torch.full((2,), 1 / 3, dtype=torch.float64))
    layer.register_buffer("low", torch.full((2,), 1 / 3).half())
    kept = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    engine = Engine(layer, sgd(layer), Level.BF16_MIXED)
    average = Ema(engine, 0.9)
    average.update(one_step(engine, layer, torch.ones(2, 4)))
    state = engine.state_dict()
    assert state["model"]["low"].dtype == torch.float32
    engine.load_state_dict(state)
    with average.in_place_of_weights():
        assert {name: b.dtype for name, b in layer.named_buffers()} == {n: b.dtype for n, b in kept.items()}
    assert all(torch.equal(buffer, kept[name]) for name, buffer in layer.named_buffers())


def test_a_mask_of_minus_infinity_survives_averaging():
    layer = nn.Linear(4, 4)
    mask = torch.full((4, 4), -math.inf).triu(1)
    layer.register_buffer("mask", mask.clone())
    engine = Engine(layer, sgd(layer), Level.BF16_MIXED)
    average = Ema(engine, 0.9)
    for _ in range(2):
        average.update(one_step(engine, layer, torch.ones(2, 4)))
    assert torch.equal(average.state_dict()["mask"], mask)


@pytest.mark.parametrize("level", [Level.BF16_MIXED, Level.BF16_MASTER])
def test_frozen_low_precision_weights_are_welcome(level):
    # As in fine-tuning adapters on a base that is held in BF16.
    model = nn.Sequential(nn.Linear(4, 4).bfloat16().requires_grad_(False), nn.Linear(4, 1))
    base = model[0].weight.clone()
    engine = Engine(model, sgd(model[1]), level)
    assert one_step(engine, model, torch.ones(2, 4)).applied
    state = engine.state_dict()
    assert {tensor.dtype for tensor in state["model"].values()} == {torch.float32}
    with engine.full_precision():
        assert model(torch.ones(2, 4)).dtype == torch.float32
    nn.init.zeros_(model[0].weight)
    engine.load_state_dict(state)
    assert torch.equal(model[0].weight, base)
    assert model[0].weight.dtype == torch.bfloat16


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x):
        return torch.vmap(self.inner)(x)


def test_modules_mapped_by_torch_func_are_measured_and_blamed():
    model, lines = Mapped(), []
    config = AmpConfig(Format.BF16, patience=2)
    engine = Engine(model, sgd(model), config, observer=Telemetry(model, Format.BF16, lines.append, interval=1))
    assert one_step(engine, model, torch.ones(3, 2, 4)).applied
    seen = {r.module: r for r in lines[0].sample.activations}
    assert (seen["inner"].low, seen["inner"].high) == (seen[""].low, seen[""].high)
    nn.init.constant_(model.inner.bias, math.inf)
    one_step(engine, model, torch.ones(3, 2, 4) * math.inf)
    with pytest.raises(TrainingDiverged, match="the model's input"):
        one_step(engine, model, torch.ones(3, 2, 4) * math.inf)


class InDict(nn.Module):
    def forward(self, x):
        return {"hidden": x * math.inf}


class TakesDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.bad, self.last = nn.Linear(4, 4), InDict(), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.bad(self.first(x))["hidden"])


def test_outputs_in_a_dict_are_looked_into():
    model = TakesDict()
    engine = Engine(model, sgd(model), AmpConfig(Format.BF16, patience=2))
    one_step(engine, model, torch.ones(1, 4))
    with pytest.raises(TrainingDiverged, match=r"the output of `bad` \(InDict\)") as raised:
        one_step(engine, model, torch.ones(1, 4))
    assert "bf16" not in str(raised.value), "the level is one already"


def test_a_loaded_state_ends_the_step_that_was_under_way():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    engine = Engine(model, sgd(model), Level.FP16_MIXED)
    fresh = engine.state_dict()
    one_step(engine, model, torch.randn(8, 4))
    trained = engine.state_dict()
    engine.load_state_dict(fresh)
    with engine.forward():
        engine.backward(model(torch.randn(8, 4)).float().sum())
    engine.load_state_dict(trained)
    assert all(p.grad is None for p in model.parameters())
    assert not one_step(engine, model, torch.full((8, 4), math.inf)).applied
    assert torch.equal(model[1].running_mean, trained["model"]["1.running_mean"])


def test_a_low_weight_where_autocast_is_off_is_explained():
    class Off(nn.Linear):
        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                return super().forward(x)

    model = Off(4, 4)
    engine = Engine(model, sgd(model), Level.BF16_MASTER)
    with pytest.raises(ModelError, match=r"a forward pass mixes number formats.*mixed level"), engine.forward():
        model(torch.ones(1, 4))


def test_the_loss_of_a_step_in_parts_is_told_whole():
    layer, lines = nn.Linear(4, 1, bias=False), []
    nn.init.ones_(layer.weight)
    engine = Engine(layer, sgd(layer), Level.FP32, observer=Telemetry(layer, Format.FP16, lines.append, interval=1))
    for _ in range(4):
        engine.backward(layer(torch.ones(1, 4)).sum() / 4)
    engine.step()
    assert lines == []  # no forward() was looked at
    for _ in range(4):
        with engine.forward():
            output = layer(torch.ones(1, 4))
        engine.backward(output.sum() / 4)
    expected = float(output.sum().detach())
    engine.step()
    assert lines[0].loss == pytest.approx(expected)


def test_torchs_newer_words_for_tf32_are_understood_and_left_as_they_were():
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    backend.fp32_precision = "tf32"  # from here on torch refuses to be asked in its older words
    try:
        layer = nn.Linear(4, 1)
        for level, allowed in ((Level.FP32, "ieee"), (Level.TF32, "tf32"), (Level.BF16_MIXED, "tf32")):
            with Engine(layer, sgd(layer), level).forward():
                assert backend.fp32_precision == allowed
            assert backend.fp32_precision == "tf32"
    finally:
        backend.fp32_precision = before
    assert torch.get_float32_matmul_precision() == "highest"


class Closure(torch.optim.SGD):
    def step(self, closure):
        closure()
        return super().step()


class Wrapper(torch.optim.SGD):
    """Steps an optimizer of its own, with groups of its own, as ZeroRedundancyOptimizer does."""

    def __init__(self, parameters):
        parameters = list(parameters)
        super().__init__(parameters, lr=0.1)
        self.inner = torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize(
    ("make", "level", "says"),
    [
        (lambda m: Closure(m.parameters(), lr=0.1), Level.FP32, "Closure's step needs a closure"),
        (lambda m: Wrapper(m.parameters()), Level.BF16_MASTER, r"would not see the masters; train at bf16-mixed"),
    ],
)
def test_optimizers_that_cannot_work_so_are_refused(make, level, says):
    layer = nn.Linear(4, 1)
    with pytest.raises(UsageError, match=says):
        Engine(layer, make(layer), level)
    assert layer.weight.dtype == torch.float32
    Engine(layer, Wrapper(layer.parameters()), Level.BF16_MIXED)


def test_a_wrapper_that_shares_its_groups_is_welcome():
    layer = nn.Linear(4, 1)
    shared = Wrapper(layer.parameters())
    shared.param_groups = shared.inner.param_groups
    Engine(layer, shared, Level.BF16_MASTER)
    assert layer.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("model", [nn.LazyLinear(2), nn.Sequential(nn.Linear(2, 2), nn.LazyBatchNorm1d(affine=False))])
def test_a_lazy_module_without_shapes_is_refused(model):
    with pytest.raises(UsageError, match=r"of a lazy module has no shape yet; run the model once"):
        Engine(model, sgd(model), Level.BF16_MASTER)


def test_other_things_than_precisions_are_refused():
    layer = nn.Linear(2, 2)
    with pytest.raises(UsageError, match=r"torch\.bfloat16 is not a precision; give a level"):
        Engine(layer, sgd(layer), torch.bfloat16)
    with pytest.raises(UsageError, match=r"'bf16' is not a number format; use Format\.BF16"):
        AmpConfig("bf16")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, as it traces
@pytest.mark.parametrize(
    "low", [{"compute": Format.BF16}, {"compute": Format.FP16, "scaling": LossScaling.static(1.0)}]
)
def test_a_compiled_model_is_watched_without_being_traced(low):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model, lines = torch.compile(plain, backend="eager"), []
    telemetry = Telemetry(model, Format.FP16, lines.append, interval=2)
    engine = Engine(model, sgd(model, 1e-3), AmpConfig(**low), observer=telemetry)
    x = torch.randn(8, 4)
    applied = [one_step(engine, model, batch).applied for batch in (x, x, x * math.inf, x * math.inf, x)]
    assert applied == [True, True, False, False, True]
    assert {"_orig_mod.0", "_orig_mod.2"} <= {r.module for r in lines[0].sample.activations}
