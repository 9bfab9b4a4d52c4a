"""The emulator against torch's own BF16 and FP16 kernels on real networks: the size of the drift, what breaks."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from mpdeploy import records
from mpdeploy.conversion.api import convert, plan_path_of
from mpdeploy.errors import ModelError
from mpdeploy.graph import io
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.runtime.emulator import EmulatorRunner
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.runtime.runner import TensorSpec
from mpdeploy.runtime.torch_module import TorchModuleRunner

BY_TYPE_RULE = ("MP301",)


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.skip = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(a, b, 2) for a, b in ((3, 32), (32, 64), (64, 128), (128, 128))))
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.blocks(x).mean(dim=(2, 3)))


class Layer(nn.Module):
    def __init__(self, width, heads, gated):
        super().__init__()
        self.heads, self.gated = heads, gated
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.gate, self.down = (
            nn.Linear(width, 4 * width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5, dim=-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(n, length, width))
        h = self.norm2(x)
        inner = self.up(h) * torch.nn.functional.silu(self.gate(h)) if self.gated else nn.functional.gelu(self.up(h))
        return x + self.down(inner)


class Transformer(nn.Module):
    def __init__(self, gated=False):
        super().__init__()
        self.embed = nn.Embedding(300, 96)
        self.layers = nn.Sequential(*(Layer(96, 4, gated) for _ in range(3)))
        self.head = nn.Linear(96, 300)

    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)))


NETWORKS = {
    "resnet": (ResNet, lambda: torch.randn(16, 3, 48, 48), "float32"),
    "encoder": (Transformer, lambda: torch.randint(0, 300, (8, 24)), "int64"),
    "gated decoder": (lambda: Transformer(gated=True), lambda: torch.randint(0, 300, (8, 24)), "int64"),
}


def exported(module, x, path):
    with torch.no_grad():
        torch.onnx.export(module, (x,), str(path), input_names=["x"], output_names=["y"], dynamo=True, verbose=False)
    return path


def all_low(source, precision):
    """The model with every operator low that may be, as ``module.to(dtype)`` makes it."""
    target = source.with_name(f"{precision}.onnx")
    convert(source, target, precision=precision)
    plan = records.load(PrecisionPlan, plan_path_of(target))
    low = [dataclasses.replace(d, format=plan.precision) if d.code not in BY_TYPE_RULE else d for d in plan.decisions]
    edited = target.with_suffix(".edited.json")
    records.save(dataclasses.replace(plan, decisions=tuple(low)), edited)
    convert(source, target, precision=precision, plan=edited)
    return target


def drift(y, reference):
    return np.linalg.norm((y.astype(np.float64) - reference).ravel()) / np.linalg.norm(reference.ravel())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_the_size_of_the_drift_agrees_with_torchs_kernels(name, tmp_path):
    build, data, kind = NETWORKS[name]
    torch.manual_seed(0)
    module, x = build().eval(), data()
    path, feed, spec = exported(module, x, tmp_path / "m.onnx"), {"x": x.numpy()}, [TensorSpec("x", kind, None)]
    reference = TorchModuleRunner(module, spec, ["y"], name).run(feed)["y"]
    assert drift(OrtRunner(io.load(path), name).run(feed)["y"], reference) < 1e-5
    for low in (Format.BF16, Format.FP16):
        emulated = EmulatorRunner(io.load(all_low(path, low.value)), name).run(feed)["y"]
        real = TorchModuleRunner(module, spec, ["y"], name, low).run(feed)["y"]
        ratio = drift(emulated, reference) / drift(real, reference)
        assert 0.8 < ratio < 1.25, (low, ratio)


class Square(nn.Module):
    """Linear layers around a square, so that samples of large magnitude overflow FP16 on the way."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.last(torch.sqrt(self.first(x) ** 2 + 1e-3) * 1e-2)


@pytest.mark.filterwarnings("ignore")
def test_the_same_samples_break_as_with_torchs_kernels(tmp_path):
    torch.manual_seed(0)
    module = Square().eval()
    scale = torch.logspace(0, 4, 60)[:, None]
    x = torch.randn(60, 16) * scale
    path, feed, spec = exported(module, x, tmp_path / "m.onnx"), {"x": x.numpy()}, [TensorSpec("x", "float32", None)]
    broken = {}
    for low in (Format.FP16, Format.BF16):
        emulated = EmulatorRunner(io.load(all_low(path, low.value)), "square").run(feed)["y"]
        real = TorchModuleRunner(module, spec, ["y"], "square", low).run(feed)["y"]
        broken[low] = ~np.isfinite(emulated).all(axis=1)
        np.testing.assert_array_equal(broken[low], ~np.isfinite(real).all(axis=1))
    assert 5 < broken[Format.FP16].sum() < 55
    assert not broken[Format.BF16].any()


def test_a_module_as_a_runner():
    spec = [TensorSpec("x", "float32", ("N", 4)), TensorSpec("k", "int64", ())]

    class Two(nn.Module):
        def forward(self, x, k):
            return {"double": x * 2, "index": (x > 0).sum() + k}

    runner = TorchModuleRunner(Two().eval(), spec, ["double", "index"], "two", Format.BF16)
    x = np.float32([[0.1, 1, 2, 3]])
    got = runner.run({"x": x, "k": np.int64(3)})
    assert got["double"].dtype == np.float32
    assert got["double"][0, 0] == pytest.approx(0.2, rel=2**-8)
    assert got["double"][0, 0] != np.float32(0.2)
    assert got["index"] == 7
    assert [s.name for s in (*runner.inputs, *runner.outputs)] == ["x", "k", "double", "index"]
    assert runner.describe().precision.startswith("bf16")
    with pytest.raises(ModelError, match="gives 2 outputs, not 1"):
        TorchModuleRunner(Two().eval(), spec, ["y"], "two").run({"x": x, "k": np.int64(3)})
    with pytest.raises(ModelError, match="fails on the data"):
        TorchModuleRunner(nn.Linear(3, 3).eval(), spec[:1], ["y"], "linear").run({"x": x})


def test_the_callers_module_stays_as_it_was():
    module = nn.Linear(4, 2).eval()
    TorchModuleRunner(module, [TensorSpec("x", "float32", None)], ["y"], "m", Format.FP16)
    assert module.weight.dtype == torch.float32
