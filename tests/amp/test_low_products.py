"""Low-precision products that a processor has no good kernel for: FP32 sums, one rounding, nothing else changed."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

from mpdeploy.amp import Engine, low_products
from mpdeploy.amp.arithmetic import products
from mpdeploy.amp.low_products import Fp32Sums
from mpdeploy.numerics.formats import Format

HALF_ULP = 2.0**-11


@pytest.fixture(params=[False, True], ids=["without units", "with units"])
def processor(request, monkeypatch):
    """A processor of either kind; where it has no units, torch's plain kernels stand for the products left to it."""
    monkeypatch.setattr(low_products, "has_units", lambda compute: request.param)
    return request.param


def half(*shape):
    return torch.randn(*shape).half()


def results(function, tensors):
    """Return the output and the gradient of every tensor."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    output = function(*leaves)
    output.float().square().sum().backward()
    return [output.detach(), *(leaf.grad for leaf in leaves)]


def causal(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


CASES = {
    "convolution": (lambda x, w, b: functional.conv2d(x, w, b, padding=1), (2, 8, 9, 9), (16, 8, 3, 3), (16,)),
    "transposed convolution": (functional.conv_transpose2d, (2, 8, 6, 6), (8, 4, 3, 3)),
    "grouped convolution": (lambda x, w: functional.conv1d(x, w, groups=4), (2, 8, 12), (8, 2, 3)),
    "linear": (functional.linear, (64, 128), (32, 128), (32,)),
    "batched product": (torch.matmul, (3, 4, 5, 6), (3, 4, 6, 7)),
    "matrix and vector": (torch.matmul, (8, 40), (40,)),
    "vectors": (torch.matmul, (40,), (40,)),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bik", a, b), (3, 4, 50), (3, 6, 50)),
    "bilinear": (functional.bilinear, (8, 4), (8, 5), (3, 4, 5)),
    "attention": (causal, (2, 4, 16, 8), (2, 4, 16, 8), (2, 4, 16, 8)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_product_is_the_exact_one_rounded_once(name):
    torch.manual_seed(0)
    function, *shapes = CASES[name]
    tensors = [half(*shape) for shape in shapes]
    with Fp32Sums():
        low = results(function, tensors)
    assert {value.dtype for value in low} == {torch.float16}
    # The exact gradients are those of the rounded output, which is what the loss above has seen.
    exact = function(*(t.double() for t in tensors))
    assert torch.allclose(low[0].double(), exact, rtol=1.01 * HALF_ULP, atol=1e-5)
    for own, expected in zip(low[1:], results(function, [t.float() for t in tensors])[1:], strict=True):
        assert (own.double() - expected).abs().max() <= 4 * HALF_ULP * expected.abs().max()


def test_sums_do_not_overflow_before_they_end():
    ones, large = torch.ones(1, 64).half(), torch.full((64, 1), 60000.0).half()
    large[32:] *= -1
    with Fp32Sums():
        assert (ones @ large).item() == 0  # half of the way the sum is 1.9e6
        assert torch.isinf(ones @ large.abs()).all()  # the result itself is beyond FP16


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrences_run_forward_and_backward(layer):
    torch.manual_seed(0)
    wide = layer(8, 16, num_layers=2)
    x = torch.randn(5, 2, 8)
    expected, _ = wide(x)
    narrow = layer(8, 16, num_layers=2).half()
    narrow.load_state_dict(wide.state_dict())
    with Fp32Sums():
        output, _ = narrow(x.half())
        output.float().square().sum().backward()
    assert output.dtype == torch.float16
    assert 0 < (output - expected).abs().max() < 4e-3
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in narrow.parameters())


def test_what_is_no_fp16_product_is_left_alone():
    wide, low = torch.randn(4, 4), torch.randn(4, 4).bfloat16()
    with Fp32Sums():
        assert torch.equal(wide @ wide, torch.mm(wide, wide))
        assert (low @ low).dtype == torch.bfloat16
        with pytest.raises(RuntimeError, match="dtype"):
            wide @ wide.half()  # mixing formats stays the fault that it is


class Widths(TorchDispatchMode):
    """Notes the type in which each product reaches torch's kernels."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.seen.setdefault(name, {a.dtype for a in args if isinstance(a, torch.Tensor)})
        return func(*args, **(kwargs or {}))


def test_only_matrix_products_are_left_to_the_processor(processor):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Flatten(), nn.Linear(24, 3))
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), "fp16-mixed")
    with Widths() as kernels:
        with engine.forward():
            output = model(torch.randn(2, 2, 8))
        engine.backward(output.float().square().mean())
    low, wide = {torch.float16}, {torch.float32}
    assert kernels.seen["convolution"] == kernels.seen["convolution_backward"] == wide
    assert kernels.seen["addmm"] == kernels.seen["mm"] == (low if processor else wide)


@pytest.mark.parametrize("compute", [Format.FP32, Format.BF16])
def test_only_fp16_passes_are_touched(compute):
    x = half(4, 4)
    native = x @ x
    with products("cpu", compute):
        assert torch.equal(x @ x, native)


class Everything(nn.Module):
    """Products that torch composes of others: an einsum, an LSTM, a convolution, attention by its short cut."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.lstm, self.convolution = nn.LSTM(8, 8), nn.Conv1d(8, 8, 3, padding=1)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        x, _ = self.lstm(torch.einsum("tbi,oi->tbo", x, self.weight))
        return self.convolution(self.encoder(x).transpose(1, 2))


@pytest.mark.parametrize("level", ["fp16-mixed", "fp16-master"])
def test_a_model_computes_the_same_in_inference_mode(level, processor):
    torch.manual_seed(0)
    model = Everything()
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), level)
    model.eval()
    x = torch.randn(3, 2, 8)
    with engine.forward():
        expected = model(x).detach()
    for context in (torch.no_grad, torch.inference_mode):
        with context(), engine.forward():
            assert torch.equal(model(x), expected)
        with engine.forward(), context():
            assert torch.equal(model(x), expected)
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_activations_are_the_same(reentrant):
    found = []
    for checkpointed in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 8))
        engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), "fp16-mixed")
        x = torch.randn(4, 8, requires_grad=True)
        with engine.forward():
            output = checkpoint(model, x, use_reentrant=reentrant) if checkpointed else model(x)
        engine.backward(output.float().square().mean())
        found.append((engine.step().grad_norm, model[0].weight.detach()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_a_penalty_on_gradients_goes_backward_twice(processor):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 1))
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), "fp16-mixed")
    x = torch.randn(2, 1, 8, 8, requires_grad=True)

    def penalty(model):
        (gradient,) = torch.autograd.grad(model(x).float().sum(), x, create_graph=True)
        return gradient.square().sum()

    exact = torch.autograd.grad(penalty(model), model[0].weight)[0].norm().item()
    with engine.forward():
        loss = penalty(model)
    engine.backward(loss)
    assert model[0].weight.grad.norm() == pytest.approx(exact, rel=1e-2)


def test_a_region_that_fails_leaves_nothing_behind():
    with pytest.raises(KeyError), products("cpu", Format.FP16):
        raise KeyError
    x = half(4, 4)
    assert _get_current_dispatch_mode() is None
    assert torch.equal(torch.func.vmap(lambda a: a @ x)(x[None])[0], x @ x)
    assert torch.backends.mha.get_fastpath_enabled()
