"""Hugging Face folders from strangers: no code, no way out of the folder, no memory that their files do not back."""

import json
import os
from pathlib import Path

import pytest
import torch

from mpdeploy.errors import ModelError, UsageError
from mpdeploy.source import Given, open_source


class Plant:
    """Unpickling it makes the marker."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def marker(tmp_path):
    path = tmp_path / "marker"
    yield path
    assert not path.exists()


def test_a_hugging_face_folder_with_code_or_pickles(tmp_path, marker):
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "modeling_trap.py").write_text(f"open({str(marker)!r}, 'w')\n")
    config = {"architectures": ["Trap"], "auto_map": {"AutoModel": "modeling_trap.Trap"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="asks for code of its own"):
        open_source(folder, Given())
    (folder / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    torch.save({"x": Plant(marker)}, folder / "pytorch_model.bin")
    with pytest.raises(UsageError, match=r"holds no \.safetensors file .*pickled weights are not read"):
        open_source(folder, Given())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../../secret"}}))
    with pytest.raises(UsageError, match="points outside"):
        open_source(folder, Given())


@pytest.fixture
def folder(tmp_path):
    """A sound folder: a tiny BERT's config and weights."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=30
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "hf")
    return tmp_path / "hf"


def configured(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"text_config": {"auto_map": {"AutoModel": "trap.Trap"}}}, ModelError, "asks for code of its own"),
        ({"parts": [{"trust_remote_code": True}]}, ModelError, "asks for code of its own"),
        ({"text_config": {"quantization_config": {"bits": 4}}}, ModelError, "asks for quantised weights"),
        ({"architectures": ["AutoModel"]}, ModelError, "does not have"),
        ({"architectures": ["os.system"]}, ModelError, "does not have"),
        ({"num_hidden_layers": 1 << 40}, UsageError, r"claims 1099511627776 layers \(`num_hidden_layers`\)"),
        ({"vocab_size": 1 << 40}, UsageError, r"claims 87\d+ weights, the files hold"),
        ({"num_attention_heads": 0}, UsageError, "transformers cannot load the folder: ZeroDivisionError"),
        ({"hidden_size": "8"}, UsageError, "transformers cannot load the folder"),
    ],
)
def test_a_config_that_asks_for_too_much(folder, marker, changes, error, says):
    (folder / "trap.py").write_text(f"open({str(marker)!r}, 'w')\n")
    configured(folder, **changes)
    with pytest.raises(error, match=says) as caught:
        open_source(folder, Given())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "extra.txt", "more"])
def test_links_out_of_a_hugging_face_folder(folder, tmp_path, name):
    outside = tmp_path / "outside"
    if name == "more":
        outside.mkdir()
    elif (folder / name).exists():
        (folder / name).rename(outside)
    else:
        outside.write_text("secret")
    (folder / name).symlink_to(outside)
    with pytest.raises(UsageError, match=f"a link leads out of the folder .*{name}"):
        open_source(folder, Given())


def test_links_of_the_hugging_face_cache_are_followed(folder, tmp_path):
    home = tmp_path / "models--tiny"
    snapshot = home / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (home / "blobs").mkdir()
    for place, file in enumerate(folder.iterdir()):
        file.rename(home / "blobs" / str(place))
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(place))
    assert open_source(snapshot, Given()).inputs[0].name == "input_ids"


def test_an_adapter_is_no_whole_model(folder, tmp_path):
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "other")}))
    with pytest.raises(UsageError, match=r"holds an adapter, .*merge"):
        open_source(folder, Given())
