"""From model.pt to FP32 ONNX, held against torch by ONNX Runtime."""

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from mpdeploy.amp import Level
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.source import Given, check_export, export_fp32_onnx, load_module, open_source
from mpdeploy.train.checkpoint import load_checkpoint, save_checkpoint
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training

torch.set_num_threads(1)
DIGITS_CNN = Path(__file__).parents[2] / "models" / "digits_cnn.py"


def run(path, feed):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def train(recipe: Path, folder: Path) -> Path:
    training = Training(load_recipe(recipe), folder, Settings(Level.BF16_MIXED, 1))
    list(training.steps())
    training.finish()
    return folder / "model.pt"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return train(DIGITS_CNN, tmp_path_factory.mktemp("run"))


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder with the recipe in models/, to stand in."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "digits_cnn.py").write_bytes(DIGITS_CNN.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("home")
def test_a_checkpoint_comes_back_as_it_was_trained(checkpoint):
    loaded = load_module(checkpoint)
    assert not loaded.module.training
    assert {p.dtype for p in loaded.module.parameters()} == {torch.float32}
    assert [(i.name, i.shape) for i in loaded.inputs] == [("image", ("batch", 1, 8, 8))]
    feeds = [np.load(f) for f in sorted((checkpoint.parent / "heldout").iterdir())]
    images = torch.from_numpy(np.concatenate([f["image"] for f in feeds]))
    labels = np.concatenate([f["labels"] for f in feeds])
    accuracy = (loaded.module(images).argmax(-1).numpy() == labels).mean()
    assert accuracy == pytest.approx(loaded.record.metric)


def test_the_onnx_file_keeps_names_and_axes_and_computes_the_same(checkpoint, home, capfd, caplog):
    with caplog.at_level(logging.WARNING):
        path = export_fp32_onnx(load_module(checkpoint), home / "out" / "digits.onnx")
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
    assert [p.name for p in path.parent.iterdir()] == ["digits.onnx"]

    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(o.domain, o.version) for o in model.opset_import] == [("", 22)]
    dims = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert dims == {"image": ["batch", 1, 8, 8], "logits": ["batch", 10]}
    assert str(Path.cwd()) not in str(model), "no paths of the exporting machine"

    check = check_export(load_module(checkpoint), path, run)
    assert check.worst < 1e-5
    assert [sizes["batch"] for sizes in check.sizes] == [4, 1, 3, 8]


def test_exporting_twice_gives_the_same_bytes(checkpoint, home):
    paths = [export_fp32_onnx(load_module(checkpoint), home / f"{i}.onnx") for i in range(2)]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert (
        onnx.load(export_fp32_onnx(load_module(checkpoint), home / "20.onnx", opset=20)).opset_import[0].version == 20
    )


def test_the_check_finds_an_export_that_computes_something_else(checkpoint, home):
    loaded = load_module(checkpoint)
    path = export_fp32_onnx(loaded, home / "digits.onnx")

    def wrong(path, feed):
        return {name: value * 1.01 for name, value in run(path, feed).items()}

    def nan(path, feed):
        return {name: value * np.nan for name, value in run(path, feed).items()}

    def fixed_batch(path, feed):
        return {name: value[:1] for name, value in run(path, feed).items()}

    for broken in (wrong, nan, fixed_batch):
        with pytest.raises(ModelError, match="`logits` differs from torch"):
            check_export(loaded, path, broken)
    with pytest.raises(ModelError, match="recipe names"):
        check_export(loaded, path, lambda path, feed: {"other": run(path, feed)["logits"]})


def test_the_state_of_a_training_is_a_model_too(checkpoint, home):
    (state,) = (checkpoint.parent / "states").iterdir()
    trained = load_module(checkpoint).module.state_dict()
    for path in (state, state.parent):
        loaded = open_source(path, Given())
        assert all(torch.equal(tensor, trained[name]) for name, tensor in loaded.module.state_dict().items())
        assert [spec.name for spec in loaded.inputs] == ["image"]
    with pytest.raises(UsageError, match=r"a folder, not a model .*give .*model\.pt"):
        open_source(checkpoint.parent, Given())
    (home / "cut.pt").write_bytes(state.read_bytes()[:5000])
    with pytest.raises(UsageError):
        open_source(home / "cut.pt", Given())


def test_a_recipe_elsewhere_must_be_pointed_at(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"not in models/ here .*--recipe FILE"):
        load_module(checkpoint)
    assert load_module(checkpoint, DIGITS_CNN).outputs == ("logits",)


def test_a_recipe_that_changed_is_refused(checkpoint, home):
    recipe = home / "models" / "digits_cnn.py"
    recipe.write_text(recipe.read_text() + "\n")
    with pytest.raises(UsageError, match="not the recipe"):
        load_module(checkpoint)


@pytest.mark.usefixtures("home")
def test_weights_that_do_not_fit_are_listed(checkpoint, tmp_path):
    content = load_checkpoint(checkpoint)
    content.weights["head.bias"] = torch.zeros(3)
    content.weights["tail.bias"] = content.weights.pop("stem.0.weight")
    save_checkpoint(content, tmp_path / "other.pt")
    with pytest.raises(UsageError) as caught:
        load_module(tmp_path / "other.pt")
    for part in ("`stem.0.weight` is missing", "`tail.bias` is not in the model", "`head.bias` has shape (3,)"):
        assert part in str(caught.value)


def test_a_model_that_torch_cannot_export_is_named(tmp_path):
    recipe = tmp_path / "branchy.py"
    recipe.write_text(
        DIGITS_CNN.read_text().replace(
            "x = self.block2",
            "x = self.block1(self.stem(image)) if image.sum() > 0 else image\n        x = self.block2",
        )
    )
    loaded = load_module(train(recipe, tmp_path / "run"), recipe)
    (tmp_path / "m.onnx").write_text("what was there")
    with pytest.raises(ModelError, match=r"torch cannot export the model: .*branchy\.py") as caught:
        export_fp32_onnx(loaded, tmp_path / "m.onnx")
    assert "\n" not in str(caught.value)
    assert (tmp_path / "m.onnx").read_text() == "what was there"
