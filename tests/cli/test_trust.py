"""Nothing that a folder brings along runs, or is read outside it, unless the command line names it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

RAN = "import pathlib\npathlib.Path('ran').touch()\n"
RECIPE = """
import numpy as np
import torch
from torch import nn
from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy

x, y = np.zeros((16, 4), np.float32), np.zeros(16, np.int64)
recipe = Recipe(
    inputs=(TensorSpec("x", "float32", ("n", 4)),), outputs=("y",), model=lambda: nn.Linear(4, 2),
    data=lambda: Data(Arrays((x,), y), Arrays((x,), y)), optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.1),
    loss=nn.functional.cross_entropy, metric=accuracy, epochs=1, batch_size=8,
)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder as somebody sent it: models, data, settings; the test stands in it."""
    home = tmp_path / "sent"
    home.mkdir()
    monkeypatch.chdir(home)
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, 1, ["N", 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
    np.savez("data.npz", x=np.ones((3, 4), np.float32))
    Path("evil.py").write_text(RAN + "def f(reference, candidate, feed):\n    return 1.0\n")
    return home


VERIFY = ("verify", "net.onnx", "net.onnx", "--data", "data.npz", "-q")
SEARCH = ("search", "net.onnx", "-o", "low.onnx", "--precision", "bf16", "--data", "data.npz", "-q")


@pytest.mark.parametrize("words", [VERIFY, SEARCH])
def test_settings_that_nobody_named_run_no_code(cli, folder, words):
    Path("mpdeploy.toml").write_text('[verify]\nmetrics = ["evil.py:f"]\n')
    done = cli(*words)
    assert (done.code, done.out) == (2, "")
    assert "evil.py:f" in done.err
    assert "--settings mpdeploy.toml" in done.err
    assert not Path("ran").exists()
    assert cli(*words, "--settings", "mpdeploy.toml").code == 0
    assert Path("ran").exists()


def test_a_flag_takes_the_place_of_what_the_settings_name(cli, folder):
    Path("mpdeploy.toml").write_text('[verify]\nmetrics = ["evil.py:f"]\nbaseline = "../b.json"\n')
    Path("mine.py").write_text("def f(reference, candidate, feed):\n    return 1.0\n")
    assert cli(*VERIFY, "--report", "first", "--settings", "/dev/null").code == 2
    Path("empty.toml").write_text("[verify]\n")
    assert cli(*VERIFY, "--report", "first", "--settings", "empty.toml").code == 0
    done = cli(*VERIFY, "--metric", "mine.py:f", "--baseline", "first/report.json")
    assert done.code == 0, done.err
    assert not Path("ran").exists()


@pytest.mark.parametrize("place", ["../secret.json", "inside/link.json", "/etc/hostname"])
def test_settings_that_nobody_named_read_nothing_outside(cli, folder, place):
    (folder.parent / "secret.json").write_text("{}")
    Path("inside").mkdir()
    Path("inside/link.json").symlink_to("../../secret.json")
    Path("mpdeploy.toml").write_text(f'[verify]\nbaseline = "{place}"\n')
    done = cli(*VERIFY)
    assert done.code == 2
    assert "outside its folder" in done.err
    named = cli(*VERIFY, "--settings", "mpdeploy.toml")
    assert "outside its folder" not in named.err, "what was named is trusted"


def test_settings_inside_the_folder_count(cli, folder):
    assert cli(*VERIFY, "--report", "last").code == 0
    Path("mpdeploy.toml").write_text('[verify]\nbaseline = "last/report.json"\nbudget = "max_abs<=0.5"\n')
    done = cli(*VERIFY, "--json")
    assert done.code == 0, done.err
    assert done.document["budget"]["origin"] == "from mpdeploy.toml"


def test_a_recipe_that_a_checkpoint_brings_along_runs_only_once_it_was_named(cli, folder, monkeypatch, tmp_path):
    Path("models").mkdir()
    Path("models/net.py").write_text(RECIPE)
    assert cli("train", "models/net.py", "-o", "run", "-q").code == 0
    assert cli("export", "run/model.pt", "-q").code == 0, "who trained it has named it"
    # The same folder on the machine of somebody who has not.
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    for words in (("export", "run/model.pt"), ("run", "run/model.pt", "--data", "data.npz")):
        done = cli(*words, "-q")
        assert (done.code, done.out) == (2, "")
        assert "--recipe models/net.py" in done.err
    assert cli("export", "run/model.pt", "--recipe", "models/net.py", "-q").code == 0
    assert cli("export", "run/model.pt", "-q").code == 0, "named once is named"


def test_a_home_that_cannot_be_written_asks_each_time(cli, folder, monkeypatch):
    Path("models").mkdir()
    Path("models/net.py").write_text(RECIPE + "\n# another\n")
    Path("file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "file"))
    assert cli("train", "models/net.py", "-o", "run", "-q").code == 0
    assert cli("export", "run/model.pt", "-q").code == 2


@pytest.mark.parametrize("library", ["click", "numpy", "rich", "openvino", "onnx"])
def test_the_current_folder_is_no_library(folder, library):
    Path(f"{library}.py").write_text(RAN)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "mpdeploy", "inspect", "net.onnx", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    assert not Path("ran").exists()
