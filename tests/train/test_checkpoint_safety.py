"""Nothing in a checkpoint runs, and what is no checkpoint is told so in one line."""

import argparse
import os
import pickle

import pytest
import torch

from mpdeploy.errors import ModelError, UsageError
from mpdeploy.train.checkpoint import load_checkpoint, save_checkpoint
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training


class Plant:
    def __init__(self, marker) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_planted_call_is_named_and_not_made(tmp_path, zipped):
    marker, path = tmp_path / "marker", tmp_path / "model.pt"
    torch.save({"weights": {"w": torch.ones(2)}, "x": Plant(marker)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelError, match=r"could run code: \w+\.system .*save its state_dict"):
        load_checkpoint(path)
    path.write_bytes(pickle.dumps(Plant(marker)))
    with pytest.raises(UsageError, match="damaged or not a torch file"):
        load_checkpoint(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (torch.nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
        ({"args": argparse.Namespace(a=1)}, "argparse.Namespace"),
    ],
)
def test_python_objects_are_refused_by_name(tmp_path, content, named):
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(ModelError, match=named) as caught:
        load_checkpoint(tmp_path / "model.pt")
    assert "\n" not in str(caught.value)


@pytest.fixture
def checkpoint(mlp, tmp_path):
    training = Training(load_recipe(mlp), tmp_path / "run", Settings(load_recipe(mlp).recipe.level, 1))
    list(training.steps())
    training.finish()
    return tmp_path / "run" / "model.pt"


def test_damaged_files_are_told_apart_from_foreign_ones(checkpoint, tmp_path):
    whole = checkpoint.read_bytes()
    for keep in (1, 100, len(whole) // 2, len(whole) - 1):
        checkpoint.write_bytes(whole[:keep])
        with pytest.raises(UsageError, match=r"(archive is damaged|damaged or not a torch file)"):
            load_checkpoint(checkpoint)
    checkpoint.write_bytes(b"")
    with pytest.raises(UsageError, match="is empty"):
        load_checkpoint(checkpoint)
    torch.save({"w": torch.ones(2)}, checkpoint)
    with pytest.raises(UsageError, match="not a checkpoint of mpdeploy"):
        load_checkpoint(checkpoint)


def test_half_weights_and_other_schemas_are_refused(checkpoint):
    content = load_checkpoint(checkpoint)
    content.weights["0.weight"] = content.weights["0.weight"].half()
    save_checkpoint(content, checkpoint)
    with pytest.raises(UsageError, match=r"`0\.weight` is torch\.float16"):
        load_checkpoint(checkpoint)
    raw = torch.load(checkpoint, weights_only=True)
    raw["record"] = raw["record"].replace("mpdeploy.checkpoint/1", "mpdeploy.checkpoint/9")
    torch.save(raw, checkpoint)
    with pytest.raises(UsageError, match=r"has schema 'mpdeploy\.checkpoint/9'"):
        load_checkpoint(checkpoint)
