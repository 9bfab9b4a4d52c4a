"""Buffers are restored whoever wrote to them, and copied only where they may have changed."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from mpdeploy.amp import Engine, Level
from mpdeploy.amp.rollback import BufferKeeper

torch.set_num_threads(1)


class Copies(TorchDispatchMode):
    """Counts the elements that are copied."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("clone", "copy_"):
            self.elements += args[0].numel()
        if func.overloadpacket.__name__ == "_foreach_copy_":
            self.elements += sum(tensor.numel() for tensor in args[0])
        return func(*args, **(kwargs or {}))


class Writes(nn.Module):
    """A buffer that each pass moves, in one of the ways that people write it."""

    def __init__(self, how):
        super().__init__()
        self.how, self.weight = how, nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.ones(3))

    def forward(self, x):
        if self.how == "in place":
            self.seen += 1
        elif self.how == "through data":
            self.seen.data.add_(1)
        elif self.how == "replaced":
            self.seen = self.seen + 1
        elif self.how == "batch_norm of functional":
            functional.batch_norm(torch.randn(4, 3), self.seen, torch.ones(3), training=True)
        return x * self.weight


HOWS = ["in place", "through data", "replaced", "batch_norm of functional"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("level", [Level.BF16_MIXED, Level.FP16_MASTER])
def test_a_skip_gives_back_what_a_pass_wrote(how, level):
    model = Writes(how)
    engine = Engine(model, torch.optim.SGD(model.parameters(), lr=0.1), level)
    for step in range(8):
        before, tensor = model.seen.clone(), model.seen
        fails = step in (2, 3, 6)
        with engine.forward():
            output = model(torch.full((2,), math.inf if fails else 1.0))
        engine.backward(output.float().sum() * 1e-2)
        assert engine.step().applied is not fails
        assert torch.equal(model.seen, before) is fails
        assert not fails or model.seen is tensor


def test_only_what_may_have_changed_is_copied_again():
    model = nn.Sequential(nn.BatchNorm1d(4), Writes("in place"))
    model.register_buffer("table", torch.zeros(1 << 16))
    model.register_buffer("nothing", None)
    keeper = BufferKeeper(model)
    counts = []
    for _ in range(4):
        with Copies() as copies:
            keeper.remember()
        counts.append(copies.elements)
        model(torch.ones(2, 4))
    assert counts == [4 + 4 + 1 + 3 + (1 << 16), 12, 12, 12]
    model.table[0] = 1
    with Copies() as copies:
        keeper.remember()
    assert copies.elements == 12 + (1 << 16)
    model.table[0] = 2
    model.nothing = torch.ones(1)
    keeper.restore()
    assert model.table[0] == 1
    assert model.nothing is None
