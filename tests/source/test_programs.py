"""The checks of torch.export programs let ordinary programs through."""

import pytest
import torch
from torch import nn

from mpdeploy.source.adapter import named_outputs
from mpdeploy.source.program import load_program

D = torch.export.Dim


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.up, self.pool = nn.Conv2d(3, 4, 3, 2, 1), nn.Upsample(scale_factor=2.0), nn.AdaptiveAvgPool2d(2)

    def forward(self, x):
        y = self.up(self.conv(x))
        a, b = y.split(2, 1)
        return torch.cat([a, b.flip(1)], 1), self.pool(y), torch.einsum("bchw,bchw->bc", y, y)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(10, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x):
        y = self.layer(self.table(x))
        mask = torch.triu(torch.ones(x.shape[1], x.shape[1]), 1)
        return {"flat": y.reshape(y.shape[0], -1), "mask": mask, "scaled": x.shape[1] * 2 + y.sum()}


class Branches(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))


class Constants(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = torch.arange(4.0)

    def forward(self, x):
        return (x + self.steps + torch.tensor([1.0, 2, 3, 4])).to(torch.float64).clamp(min=-1.5), x.nonzero()


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch calls what it deprecates itself
@pytest.mark.parametrize(
    ("module", "example", "shapes"),
    [
        (Pictures(), torch.randn(2, 3, 16, 16), {0: D("b"), 2: D("h", min=8, max=512), 3: D.AUTO}),
        (Words(), torch.randint(0, 10, (2, 5)), {0: D("b"), 1: D("n")}),
        (Branches(), torch.randn(3), None),
        (Constants(), torch.randn(3, 4), {0: D("b")}),
    ],
)
def test_what_people_export_loads(tmp_path, module, example, shapes):
    program = torch.export.export(module.eval(), (example,), dynamic_shapes=(shapes,) if shapes else None)
    torch.export.save(program.run_decompositions(), tmp_path / "model.pt2")
    found = load_program(tmp_path / "model.pt2").module()(example)
    expected = module(example)
    ours, theirs = (named_outputs(result).values() for result in (found, expected))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs, strict=True))
