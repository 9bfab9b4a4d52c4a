"""What training measured, under the names of the exported model's values: held against the model itself."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from mpdeploy import records
from mpdeploy.amp import Level
from mpdeploy.files import sha256_of
from mpdeploy.numerics.handover import MeasuredRanges
from mpdeploy.source import export_fp32_onnx, load_module, measured_ranges, write_ranges
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training

torch.set_num_threads(1)
MODELS = Path(__file__).parents[2] / "models"


def exported(recipe: Path, folder: Path):
    training = Training(load_recipe(recipe), folder, Settings(Level.BF16_MIXED, 1))
    list(training.steps())
    training.finish()
    loaded = load_module(folder / "model.pt", recipe)
    return loaded, export_fp32_onnx(loaded, folder / "fp32.onnx")


def reached(path: Path, names, folder: Path) -> dict[str, tuple[float, float]]:
    """Run the ONNX file on all held-out feeds and return what the values reached."""
    model = onnx.load(path)
    kept = [output for output in model.graph.output if output.name not in names]
    del model.graph.output[:]
    model.graph.output.extend([onnx.helper.make_empty_tensor_value_info(name) for name in names] + kept)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = {value.name for value in session.get_inputs()}
    bounds = {}
    for file in sorted((folder / "heldout").iterdir()):
        feed = {name: array for name, array in np.load(file).items() if name in inputs}
        for name, array in zip(names, session.run(list(names), feed), strict=True):
            low, high = bounds.get(name, (np.inf, -np.inf))
            bounds[name] = (min(low, float(array.min())), max(high, float(array.max())))
    return bounds


@pytest.mark.parametrize(
    ("recipe", "least"),
    [
        ("digits_cnn", 12),
        ("lstm_digits", 3),
        pytest.param("vit_digits", 36, marks=pytest.mark.slow),
        pytest.param("unet_denoise", 25, marks=pytest.mark.slow),
    ],
)
def test_measured_ranges_are_those_of_the_onnx_values(recipe, least, tmp_path):
    loaded, path = exported(MODELS / f"{recipe}.py", tmp_path)
    ranges = measured_ranges(loaded, path)
    assert len(ranges.values) >= least
    assert ranges.nonfinite == ()
    assert ranges.model_sha256 == sha256_of(path)
    inputs = {spec.name for spec in loaded.inputs}
    assert inputs <= set(ranges.values)
    found = reached(path, sorted(set(ranges.values) - inputs), tmp_path)
    for name, bounds in found.items():
        assert ranges.bounds[name] == pytest.approx(bounds, rel=1e-3, abs=1e-4), ranges.values[name]
    assert records.load(MeasuredRanges, write_ranges(loaded, path)) == ranges


def test_folded_and_shared_modules_are_not_mistaken(mlp_recipe, tmp_path):
    loaded, path = exported(mlp_recipe, tmp_path)
    ranges = measured_ranges(loaded, path)
    measured_at = {value.measured_at for value in ranges.values.values()}
    # The exporter folds the normalisation into the layer before it, whose own output is then nowhere.
    assert "norm" in measured_at
    assert "first" in ranges.unmatched
    # The shared layer is called twice; both values get the range over both calls.
    shared = [value for value in ranges.values.values() if value.measured_at == "shared"]
    assert len(shared) == 2
    assert shared[0] == shared[1]
    bounds = reached(path, [name for name, value in ranges.values.items() if value.measured_at == "shared"], tmp_path)
    assert min(low for low, _ in bounds.values()) == pytest.approx(shared[0].low, rel=1e-3)
    assert max(high for _, high in bounds.values()) == pytest.approx(shared[0].high, rel=1e-3)


def test_a_module_that_gave_infinity_proves_nothing(mlp_recipe, tmp_path):
    text = mlp_recipe.read_text()
    mlp_recipe.write_text(
        text.replace("x = self.shared(x)\n", "x = self.shared(x * (1 if self.training else float('inf')))\n")
    )
    loaded, path = exported(mlp_recipe, tmp_path)
    ranges = measured_ranges(loaded, path)
    assert "shared" in ranges.nonfinite
    assert "shared" not in {value.measured_at for value in ranges.values.values()}
    assert "norm" in {value.measured_at for value in ranges.values.values()}


@pytest.fixture
def mlp_recipe(tmp_path):
    path = tmp_path / "shared_mlp.py"
    path.write_text("""
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4)
        self.shared, self.head = nn.Linear(62, 62), nn.Linear(62, 10)

    def forward(self, x):
        x = self.norm(self.first(x.unsqueeze(1))).relu()
        x = self.shared(x)
        x = self.shared(x.relu())
        return self.head(x.mean(1))


def data():
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int64)
    return Data(Arrays((x[:1500],), y[:1500]), Arrays((x[1500:],), y[1500:]))


recipe = Recipe(
    inputs=(TensorSpec("pixels", "float32", ("batch", 64)),),
    outputs=("logits",),
    model=Net,
    data=data,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=5e-3),
    loss=nn.functional.cross_entropy,
    metric=accuracy,
    epochs=1,
    batch_size=100,
)
""")
    return path
