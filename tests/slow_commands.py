"""Commands that are slow on purpose, so that a signal meets them at work: a test starts one and waits for `started`."""

import subprocess
import sys

import numpy as np
import onnx
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
}


def furnish(folder):
    """Write what the commands read: a model, feeds, a recipe."""
    weight = numpy_helper.from_array(np.ones((16, 16), np.float32), "w")
    inputs, outputs = ([helper.make_tensor_value_info(n, 1, ["N", 16])] for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", inputs, outputs, [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx")
    (folder / "recipe.py").write_text(RECIPE)
    (folder / "feeds.py").write_text(FEEDS)


def start(folder, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "mpdeploy", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
