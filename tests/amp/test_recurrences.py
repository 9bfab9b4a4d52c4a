"""Recurrences in low precision on a processor without a good kernel for them: whole, in FP32, rounded at the ends."""

import pytest
import torch
from torch import nn

from mpdeploy.amp import Engine, LossScaling, low_products
from mpdeploy.amp.arithmetic import autocast, products
from mpdeploy.amp.levels import AmpConfig
from mpdeploy.numerics.formats import Format

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("without_units")
LOW = {Format.FP16: torch.float16, Format.BF16: torch.bfloat16}
LAYERS = {
    "lstm": lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True),
    "lstm with projection": lambda: nn.LSTM(4, 5, proj_size=3),
    "gru": lambda: nn.GRU(4, 5, batch_first=True),
    "tanh": lambda: nn.RNN(4, 5),
    "relu": lambda: nn.RNN(4, 5, nonlinearity="relu", bias=False),
}


@pytest.fixture
def without_units(monkeypatch):
    monkeypatch.setattr(low_products, "has_units", lambda compute: False)


def made(name):
    torch.manual_seed(0)
    return LAYERS[name](), torch.randn(3, 2, 4, requires_grad=True)


def tensors(result):
    output, state = result
    return [output, *(state if isinstance(state, tuple) else (state,))]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")  # torch's own, in FP32
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("compute", LOW)
def test_results_and_gradients_are_rounded_once(name, compute):
    layer, x = made(name)
    exact = tensors(layer(x))
    exact[0].square().sum().backward()
    gradients = [x.grad, *(parameter.grad for parameter in layer.parameters())]
    x.grad = None
    layer.zero_grad()
    with autocast("cpu", compute):
        found = tensors(layer(x))
    assert {tensor.dtype for tensor in found} == {LOW[compute]}
    for times in (1, 2):  # a graph that is kept serves again
        with products("cpu", compute):
            found[0].float().square().sum().backward(retain_graph=True)
        for own, expected in zip([x.grad, *(p.grad for p in layer.parameters())], gradients, strict=True):
            error = (own - times * expected).norm() / (times * expected).norm()
            assert 0 < error < 8 * compute.unit_roundoff
    for own, expected in zip(found, exact, strict=True):
        assert 0 < (own - expected).norm() / expected.norm() < 4 * compute.unit_roundoff


@pytest.mark.parametrize("compute", LOW)
def test_weights_of_the_low_format_and_packed_sequences(compute):
    layer = nn.GRU(4, 5).to(LOW[compute])
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 4), torch.randn(2, 4)])
    with autocast("cpu", compute):
        output, state = layer(packed)
    assert (output.data.dtype, state.dtype) == (LOW[compute], LOW[compute])
    with products("cpu", compute):
        output.data.float().sum().backward()
    assert {parameter.grad.dtype for parameter in layer.parameters()} == {LOW[compute]}


@pytest.mark.parametrize("name", ["gru", "tanh"])
def test_a_penalty_on_gradients_goes_through_one(name):
    layer, x = made(name)

    def penalty():
        (gradient,) = torch.autograd.grad(layer(x)[0].float().sum(), x, create_graph=True)
        return gradient.square().sum()

    expected = torch.autograd.grad(penalty(), layer.weight_hh_l0)[0]
    with autocast("cpu", Format.BF16):
        loss = penalty()
    with products("cpu", Format.BF16):
        found = torch.autograd.grad(loss, layer.weight_hh_l0)[0]
    assert (found - expected).norm() < 0.05 * expected.norm()


@pytest.mark.parametrize("compute", LOW)
def test_frozen_weights_states_and_inference(compute):
    layer, x = made("gru")
    layer.weight_ih_l0.requires_grad_(False)
    config = AmpConfig(compute, scaling=LossScaling(initial=64.0) if compute is Format.FP16 else None)
    engine = Engine(layer, torch.optim.SGD(layer.parameters(), lr=0.1), config)
    with engine.forward():
        output, _ = layer(x, torch.ones(1, 3, 5))
    engine.backward(output.float().square().mean())
    assert layer.weight_ih_l0.grad is None
    assert layer.weight_hh_l0.grad is not None
    layer.eval()
    for context in (torch.no_grad, torch.inference_mode):
        with context(), engine.forward():
            assert torch.equal(layer(x, torch.ones(1, 3, 5))[0], output)
    assert engine.step().applied


def test_other_formats_are_left_alone():
    layer, x = made("gru")
    expected = layer(x)[0]
    with products("cpu", Format.BF16):
        assert torch.equal(layer(x)[0], expected)
