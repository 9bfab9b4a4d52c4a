"""A small network, and files that hold it in the forms that people have."""

import warnings

import pytest
import torch
from torch import nn

torch.set_num_threads(1)

FACTORY = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, image):
        return self.head(self.norm(self.conv(image)).relu().mean((2, 3)))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 3)

    def forward(self, ids, scale=None, mask=None):
        x = self.table(ids) * mask.unsqueeze(-1)
        return {"logits": self.head(x.sum(1)), "hidden": x}


def broken():
    raise RuntimeError("no such backbone")


def number():
    return 3
"""
IMAGE = ("image:batch,3,8,8",)


class Net(nn.Module):
    """The same network as the factory's, for files that are written here."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, image):
        return self.head(self.norm(self.conv(image)).relu().mean((2, 3)))


@pytest.fixture
def factory(tmp_path):
    """The words that name a function which builds the network."""
    path = tmp_path / "net.py"
    path.write_text(FACTORY)
    return f"{path}:Net"


@pytest.fixture(scope="session")
def net():
    torch.manual_seed(0)
    return Net().eval().requires_grad_(False)


@pytest.fixture(scope="session")
def image():
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="session")
def scripts(net, image, tmp_path_factory):
    """TorchScript archives of the network: scripted, traced and frozen."""
    folder = tmp_path_factory.mktemp("scripts")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(net).save(folder / "scripted.pt")
        torch.jit.trace(net, image).save(folder / "traced.pt")
        torch.jit.freeze(torch.jit.script(net)).save(folder / "frozen.pt")
    return folder


@pytest.fixture(scope="session")
def program(net, image, tmp_path_factory):
    """A torch.export program of the network with a dynamic batch."""
    path = tmp_path_factory.mktemp("program") / "net.pt2"
    shapes = ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(net, (image,), dynamic_shapes=shapes), path)
    return path
