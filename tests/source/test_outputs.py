"""What a foreign model returns, and masks: names that the exporter uses itself, chosen outputs, padded rows."""

import numpy as np
import onnxruntime
import pytest
import torch

from mpdeploy.errors import ModelError, UsageError
from mpdeploy.source import Given, check_export, export_fp32_onnx, open_source

CODE = """
import torch
from torch import nn

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.ones(4))
    def forward(self, relu):
        y = torch.softmax(self.linear(relu) * self.weight, -1)
        z = torch.relu(y - 0.1)
        return {"softmax": z, "linear": torch.softmax(z, -1), "weight": y, "same": z, "relu_1": relu}

class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
    def forward(self, x, mask):
        return self.encoder(x, src_key_padding_mask=mask)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 8)
    def forward(self, x):
        rows = self.embed(x.unsqueeze(-1) * torch.ones(6))
        order = torch.topk(rows.sum(-1) * 0, 3).indices
        return torch.gather(rows, 1, order.unsqueeze(-1).expand(-1, -1, 8))
"""


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Write the code and the weights of one of its classes; return the file and what builds it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(CODE)
    space = {}
    exec(CODE, space)  # noqa: S102 - the text above

    def save(name, **others):
        torch.manual_seed(0)
        torch.save(space[name]().state_dict() | others, tmp_path / "w.pth")
        return tmp_path / "w.pth", f"net.py:{name}"

    return save


def run(path, feed):
    session = onnxruntime.InferenceSession(str(path))
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, dict(feed)), strict=True))


def test_outputs_and_inputs_may_have_the_names_of_operators_and_weights(saved, tmp_path):
    path, factory = saved("Named")
    loaded = open_source(path, Given(factory=factory, inputs=("relu:batch,4",)))
    export_fp32_onnx(loaded, tmp_path / "m.onnx")
    assert check_export(loaded, tmp_path / "m.onnx", run).worst < 1e-5
    assert loaded.outputs == ("softmax", "linear", "weight", "same", "relu_1")


def test_only_the_outputs_that_are_asked_for_are_exported(saved, tmp_path):
    path, factory = saved("Named")
    given = Given(factory=factory, inputs=("relu:batch,4",), outputs=("weight", "softmax"))
    loaded = open_source(path, given)
    export_fp32_onnx(loaded, tmp_path / "m.onnx")
    assert check_export(loaded, tmp_path / "m.onnx", run).worst < 1e-5
    assert set(run(tmp_path / "m.onnx", {"relu": np.ones((2, 4), np.float32)})) == {"softmax", "weight"}
    with pytest.raises(UsageError, match=r"no output `logits`.* it returns softmax, linear"):
        open_source(path, Given(factory=factory, inputs=("relu:batch,4",), outputs=("logits",)))


@pytest.mark.parametrize("hidden", [False, True], ids=["padded", "one sample is all padding"])
def test_a_padding_mask_is_checked_on_the_plain_road(hidden, saved, tmp_path):
    path, factory = saved("Padded")
    words = ("x:batch,length,16", "mask:batch,length:bool")
    loaded = open_source(path, Given(factory=factory, inputs=words))  # made-up masks leave each row something
    assert all(0 < row.sum() < len(row) for row in loaded.examples["mask"])
    export_fp32_onnx(loaded, tmp_path / "m.onnx")
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[0, 0 if hidden else 2 :], mask[1, 3:] = True, True
    loaded.examples.update(x=torch.randn(4, 6, 16), mask=mask)
    check = check_export(loaded, tmp_path / "m.onnx", run)
    assert check.worst < 1e-4
    assert bool(check.notes) == hidden
    assert torch.backends.mha.get_fastpath_enabled()


def test_what_the_order_of_equal_values_decides_is_no_fault_of_the_export(saved, tmp_path):
    path, factory = saved("Tied")
    loaded = open_source(path, Given(factory=factory, inputs=("x:batch,9",)))
    export_fp32_onnx(loaded, tmp_path / "m.onnx")

    def other_order(path, feed):
        return {name: value + 1.0 for name, value in run(path, feed).items()} if broken else reversed_run(feed)

    def reversed_run(feed):
        rows = loaded.module.embed(torch.from_numpy(feed["x"]).unsqueeze(-1) * torch.ones(6))
        return {"output": rows[:, [8, 7, 6]].detach().numpy()}

    broken = False
    assert "order of nearly equal values" in check_export(loaded, tmp_path / "m.onnx", other_order).notes[0]
    steady = open_source(*_named(saved))
    export_fp32_onnx(steady, tmp_path / "n.onnx")
    broken = True
    with pytest.raises(ModelError, match="differs from torch"):
        check_export(steady, tmp_path / "n.onnx", other_order)


def _named(saved):
    path, factory = saved("Named")
    return path, Given(factory=factory, inputs=("relu:batch,4",))


def test_surplus_weights_may_be_ignored(saved, tmp_path):
    path, factory = saved("Named", **{"loss.scale": torch.ones(3)})
    given = Given(factory=factory, inputs=("relu:batch,4",))
    with pytest.raises(UsageError, match=r"`loss.scale` is not in the model.* --ignore-weights"):
        open_source(path, given)
    with pytest.raises(UsageError, match=r"--ignore-weights losses\.\* matches no stored weight.*did you mean loss"):
        open_source(path, Given(factory=factory, inputs=given.inputs, ignore_weights=("losses.*",)))
    loaded = open_source(path, Given(factory=factory, inputs=given.inputs, ignore_weights=("loss.*",)))
    assert "1 stored weights were ignored: loss.scale" in loaded.notes[0]


def test_a_head_of_ultralytics_exports_boxes_for_any_batch(tmp_path):
    ultralytics = pytest.importorskip("ultralytics")
    model = ultralytics.YOLO("yolo11n.yaml").model
    torch.save({"model": model, "ema": None}, tmp_path / "yolo.pt")
    loaded = open_source(tmp_path / "yolo.pt", Given(inputs=("images:batch,3,64,64",), trust=True))
    assert loaded.outputs == ("output",)
    export_fp32_onnx(loaded, tmp_path / "m.onnx")
    assert {sizes["batch"] for sizes in check_export(loaded, tmp_path / "m.onnx", run).sizes} == {4, 1, 3, 8}
