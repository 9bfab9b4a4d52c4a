"""Faults that people met with exporting what was trained in mixed precision; each must not happen here."""

from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch

from mpdeploy.amp import Level
from mpdeploy.source import check_export, export_fp32_onnx, load_module
from mpdeploy.train.checkpoint import load_checkpoint
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training

torch.set_num_threads(1)
LSTM = Path(__file__).parents[2] / "models" / "lstm_digits.py"


def run(path, feed):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    training = Training(load_recipe(LSTM), folder, Settings(Level.BF16_MASTER, 1))
    list(training.steps())
    training.finish()
    return folder


def test_p15_what_was_trained_with_low_weights_is_fp32_in_the_checkpoint_and_in_the_export(folder):
    weights = load_checkpoint(folder / "model.pt").weights
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    # Masters, not rounded weights: their low bits are in use.
    assert any((tensor != tensor.bfloat16().float()).any() for tensor in weights.values())
    model = onnx.load(export_fp32_onnx(load_module(folder / "model.pt", LSTM), folder / "fp32.onnx"))
    floats = {tensor.data_type for tensor in model.graph.initializer} - {onnx.TensorProto.INT64}
    assert floats == {onnx.TensorProto.FLOAT}


def test_p17_the_export_needs_no_gpu_and_goes_with_dynamic_axes(folder):
    loaded = load_module(folder / "model.pt", LSTM)
    assert {tensor.device.type for tensor in loaded.module.state_dict().values()} == {"cpu"}
    path = export_fp32_onnx(loaded, folder / "fp32.onnx")
    assert {sizes["batch"] for sizes in check_export(loaded, path, run).sizes} == {1, 3, 4, 8}
