"""Where torch cannot export, the message names the operator, the module, the line, and what to try."""

import contextlib
import gc

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mpdeploy.amp.ranges import RangeMeter
from mpdeploy.errors import ModelError
from mpdeploy.graph import io
from mpdeploy.runtime.choose import truthful_runner
from mpdeploy.source import LoadedModule, check_export, export_fp32_onnx
from mpdeploy.source.adapter import adapt
from mpdeploy.source.inputs import Inputs
from mpdeploy.train.specs import TensorSpec


def loaded(module, axes=("batch", 8)):
    example = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    spec = TensorSpec("x", "float32", axes)
    return LoadedModule(module.eval().requires_grad_(False), (spec,), ("y",), {"x": example}, "model.pt", made_up=True)


class Decompose(nn.Module):
    def forward(self, x):
        return torch.linalg.svdvals(x)


class Branch(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return x * 2


class Leaf(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.stem, self.block = nn.Linear(8, 8), nn.ModuleList([inner])

    def forward(self, x):
        return self.block[0](self.stem(x))


class Fixed(nn.Module):
    def forward(self, x):
        return x.view(4, 2, 4)


class Sized(nn.Module):
    def forward(self, x):
        return x * x.shape[0] if x.shape[0] == 4 else x


def test_an_operator_without_onnx_form(tmp_path):
    with pytest.raises(ModelError) as caught:
        export_fp32_onnx(loaded(Leaf(Decompose())), tmp_path / "m.onnx")
    text = str(caught.value)
    for part in ("svd", "in the module `block.0`", "[model.pt]", "ONNX has no form of aten."):
        assert part in text
    assert "\n" not in text
    assert list(tmp_path.iterdir()) == []


def test_a_branch_on_values(tmp_path):
    with pytest.raises(ModelError) as caught:
        export_fp32_onnx(loaded(Leaf(Branch())), tmp_path / "m.onnx")
    text = str(caught.value)
    for part in ("data-dependent", "in the module `block.0`", "test_faults.py line", "if x.sum() > 0", "torch.where"):
        assert part in text


@pytest.mark.parametrize("module", [Fixed(), Sized()])
def test_a_size_that_the_code_fixes(tmp_path, module):
    with pytest.raises(ModelError, match=r"fixes the axis `batch` of `x` at 4: .*--input x:4,8"):
        export_fp32_onnx(loaded(module), tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []
    export_fp32_onnx(loaded(module, axes=(4, 8)), tmp_path / "m.onnx")


class Noise(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return x + self.calls


@pytest.mark.parametrize("module", [Noise(), Counter()])
def test_a_model_that_is_no_function(tmp_path, module):
    with pytest.raises(ModelError, match="other outputs when it is run again"):
        check_export(loaded(module), tmp_path / "m.onnx", lambda path, feed: {})


def test_an_export_outside_autocast_and_in_fp32(tmp_path):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        path = export_fp32_onnx(loaded(nn.Linear(8, 4)), tmp_path / "m.onnx")
    model = io.load(path)
    assert {str(v.dtype) for n in model.graph for v in n.outputs} == {"FLOAT"}
    assert truthful_runner(model, "m").run({"x": torch.ones(2, 8).numpy()})["y"].dtype == "float32"


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.head(x)


class Gpu(nn.Module):
    def forward(self, x):
        return x.cuda()


def test_p17_a_forward_that_is_half_itself_or_wants_a_gpu(tmp_path):
    with pytest.raises(ModelError, match=r"the output `y` is bfloat16: .*take autocast and \.half\(\) out"):
        check_export(loaded(Half()), tmp_path / "m.onnx", lambda path, feed: {})
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    spec = TensorSpec("x", "float32", (2,))
    with pytest.raises(ModelError, match=r"asks for a GPU: .*instead of \.cuda\(\)"):
        adapt(Gpu(), Inputs((spec,), {"x": torch.ones(2)}, made_up=True), "model.pt")


def test_nothing_is_collected_while_torch_traces(tmp_path):
    seen = []

    class Looks(nn.Module):
        def forward(self, x):
            seen.append(gc.isenabled())
            return x + 1

    export_fp32_onnx(loaded(Looks()), tmp_path / "m.onnx")
    assert seen
    assert not any(seen)
    assert gc.isenabled()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_look_at_ranges_that_was_broken_off_may_be_collected_anywhere():
    model = nn.Linear(8, 8)
    meter = RangeMeter(model)
    abandoned = contextlib.ExitStack()
    abandoned.enter_context(meter.watching())
    model(torch.ones(1, 8))
    with FakeTensorMode(shape_env=ShapeEnv()):
        del abandoned
        gc.collect()
    assert meter.ranges() == ()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
