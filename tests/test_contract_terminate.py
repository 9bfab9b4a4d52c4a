"""SIGTERM in the middle of a command: as Ctrl-C, but exit code 143; what a kill leaves is gone with the next run."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

FEEDS = """
import pathlib, time
import numpy as np


def slowly():
    for i in range(1000):
        if i == 2:
            pathlib.Path("started").touch()
        yield {"x": np.ones((1, 16), np.float32)}
        time.sleep(0.1)


def quickly():
    yield {"x": np.ones((1, 16), np.float32)}
"""
RECIPE = """
import pathlib, time
import numpy as np
import torch
from torch import nn
from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy

x, y = np.zeros((400, 16), np.float32), np.zeros(400, np.int64)
steps = 0


def loss(outputs, labels):
    global steps
    steps += 1
    if steps == 3:
        pathlib.Path("started").touch()
    time.sleep(0.1)
    return nn.functional.cross_entropy(outputs, labels)


recipe = Recipe(
    inputs=(TensorSpec("x", "float32", ("n", 16)),), outputs=("y",), model=lambda: nn.Linear(16, 2),
    data=lambda: Data(Arrays((x,), y), Arrays((x,), y)), optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.1),
    loss=loss, metric=accuracy, epochs=1, batch_size=1,
)
"""
COMMANDS = {
    "train": ("train", "recipe.py", "-o", "out"),
    "convert": ("convert", "net.onnx", "-o", "out/low.onnx", "--precision", "fp16", "--data", "feeds.py:slowly"),
    "verify": ("verify", "net.onnx", "net.onnx", "--data", "feeds.py:slowly", "--report", "out"),
    "export": ("export", "net.onnx", "--data", "feeds.py:slowly", "-o", "out"),
    "run": ("run", "net.onnx", "--data", "feeds.py:slowly", "-o", "out/outputs"),
    "pipeline": ("pipeline", "deploy.toml"),
    "pipeline that trains": ("pipeline", "train.toml"),
}
DEPLOY = 'output = "out"\n[model]\npath = "net.onnx"\n[convert]\ndata = "feeds.py:slowly"\n'
TRAIN = 'output = "out"\n[train]\nrecipe = "recipe.py"\n'


@pytest.fixture
def folder(tmp_path):
    weight = numpy_helper.from_array(np.ones((16, 16), np.float32), "w")
    inputs, outputs = ([helper.make_tensor_value_info(n, 1, ["N", 16])] for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", inputs, outputs, [weight])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "net.onnx"
    )
    for name, text in (("recipe.py", RECIPE), ("feeds.py", FEEDS), ("deploy.toml", DEPLOY), ("train.toml", TRAIN)):
        (tmp_path / name).write_text(text)
    return tmp_path


def stopped(folder: Path, words: tuple[str, ...], number: int) -> tuple[int, str, str]:
    """Start a command, send it a signal once it is at work, and return how it ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mpdeploy", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (folder / "started").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def strays(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in (".part", ".old", ".gone")]


@pytest.mark.parametrize("name", COMMANDS)
def test_terminated_in_the_middle(folder, name):
    code, out, err = stopped(folder, COMMANDS[name], signal.SIGTERM)
    assert (code, out) == (143, ""), err
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("mpdeploy: terminated; ")
    if name == "pipeline that trains":  # what it trained is kept, and that is what is said
        assert [str(path.relative_to(folder)) for path in strays(folder)] == [
            last.split(" is kept in ")[1].split(",")[0]
        ]
    else:
        assert strays(folder) == []
        assert last.endswith("nothing half-written was left")


KILLED = {
    "convert": (COMMANDS["convert"], ("convert", "net.onnx", "-o", "out/low.onnx", "--precision", "fp16")),
    "export": (COMMANDS["export"], ("export", "net.onnx", "--data", "feeds.py:quickly", "-o", "out")),
    "run": (COMMANDS["run"], ("run", "net.onnx", "--data", "feeds.py:quickly", "-o", "out/outputs")),
}  # fmt: skip


@pytest.mark.parametrize("name", KILLED)
def test_killed_in_the_middle_and_run_again(folder, name):
    killed, again = KILLED[name]
    assert stopped(folder, killed, signal.SIGKILL)[0] == -signal.SIGKILL
    done = subprocess.run(
        [sys.executable, "-m", "mpdeploy", *again], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert strays(folder) == []
