"""Every recipe in models/: it learns from its real data, and its checkpoint becomes the same model in ONNX."""

import math
from itertools import islice
from pathlib import Path

import onnxruntime
import pytest
import torch

from mpdeploy.amp import Level
from mpdeploy.source import check_export, export_fp32_onnx, load_module
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training

MODELS = Path(__file__).parents[2] / "models"
RECIPES = sorted(path.stem for path in MODELS.glob("*.py"))


def mean(losses):
    return math.fsum(losses) / len(losses)


def test_all_recipes_are_known_to_this_test():
    assert RECIPES == ["char_gpt", "digits_cnn", "lstm_digits", "resnet18_digits", "unet_denoise", "vit_digits"]


@pytest.mark.parametrize("name", RECIPES)
def test_it_learns(name, tmp_path):
    torch.set_num_threads(1)
    steps = {"resnet18_digits": 8, "vit_digits": 60}.get(name, 25)
    training = Training(load_recipe(MODELS / f"{name}.py"), tmp_path, Settings(Level.BF16_MIXED, 4))
    losses = [step.loss for step in islice(training.steps(), steps)]
    assert mean(losses[-3:]) < 0.9 * mean(losses[:3])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"),
    [("char_gpt", -2.8), ("lstm_digits", 0.9), ("resnet18_digits", 0.95), ("unet_denoise", 25.0), ("vit_digits", 0.9)],
)
def test_it_gets_good_and_its_export_is_the_same_model(name, least, tmp_path):
    recipe = MODELS / f"{name}.py"
    training = Training(load_recipe(recipe), tmp_path, Settings(Level.BF16_MIXED, load_recipe(recipe).recipe.epochs))
    list(training.steps())
    metric = training.finish().metric
    assert (metric if load_recipe(recipe).recipe.metric.higher_is_better else -metric) > least
    loaded = load_module(tmp_path / "model.pt", recipe)
    path = export_fp32_onnx(loaded, tmp_path / "fp32.onnx")

    def run(path, feed):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(feed)), strict=True))

    assert check_export(loaded, path, run).worst < 1e-4
