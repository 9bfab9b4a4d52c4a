"""A full disk: one line, exit code 2, and every file that was there is what it was."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

LIMIT = 16 << 10  # bytes that fit; every output under test is larger

RECIPE = """
import numpy as np
import torch
from torch import nn
from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy

x, y = np.zeros((16, 64), np.float32), np.zeros(16, np.int64)
recipe = Recipe(
    inputs=(TensorSpec("x", "float32", ("n", 64)),), outputs=("y",), model=lambda: nn.Linear(64, 64),
    data=lambda: Data(Arrays((x,), y), Arrays((x,), y)), optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.1),
    loss=nn.functional.cross_entropy, metric=accuracy, epochs=1, batch_size=8,
)
"""


@pytest.fixture
def folder(tmp_path):
    """A model whose outputs are all larger than the disk, data, a recipe; and older outputs under full/."""
    weight = numpy_helper.from_array(np.random.default_rng(0).normal(size=(128, 128)).astype(np.float32), "w")
    inputs, outputs = ([helper.make_tensor_value_info(n, 1, ["N", 128])] for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", inputs, outputs, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    onnx.save(model, tmp_path / "outside.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    np.savez(tmp_path / "data.npz", x=np.ones((4, 128), np.float32))
    (tmp_path / "recipe.py").write_text(RECIPE)
    return tmp_path


OLD = {"low.onnx": b"old model", "low.plan.json": b"old plan", "low.engine": b"old engine", "model.pt": b"old"}


def fill(full: Path) -> None:
    for name, content in OLD.items():
        (full / name).write_bytes(content)


def kept(full: Path) -> None:
    """What was there is as it was, and no scratch file is left."""
    for name, content in OLD.items():
        assert (full / name).read_bytes() == content
    assert not [p for p in full.rglob("*") if p.suffix in (".part", ".old") or p.name.startswith(".")]


COMMANDS = {
    "convert": ("convert", "net.onnx", "-o", "full/low.onnx", "--precision", "fp16"),
    "convert with a data file": ("convert", "outside.onnx", "-o", "full/low.onnx", "--precision", "fp16"),
    "verify": ("verify", "net.onnx", "net.onnx", "--data", "data.npz", "--report", "full"),
    "build": ("build", "net.onnx", "-o", "full/low.engine", "--shapes", "x:1x128:4x128:8x128"),
    "train": ("train", "recipe.py", "-o", "full", "-q"),
}


def limited() -> None:
    # The kernel refuses to let any file grow further: the same answer at the same place as a full disk's.
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


@pytest.mark.parametrize("name", COMMANDS)
def test_no_room_for_the_output(folder, name):
    if name == "build":
        pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    (folder / "full").mkdir()
    fill(folder / "full")
    done = subprocess.run(
        [sys.executable, "-m", "mpdeploy", *COMMANDS[name]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.startswith("mpdeploy: cannot write the output: File too large [")
    assert done.stderr.count("\n") == 1
    kept(folder / "full")


@pytest.fixture
def full_disk(folder):
    """A file system of a few kilobytes, mounted at full/."""
    (folder / "full").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={LIMIT}", "tmpfs", str(folder / "full")]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip("only the superuser may mount")
    fill(folder / "full")
    yield folder
    subprocess.run(["umount", "-l", str(folder / "full")], check=True)


def test_a_disk_that_is_really_full(full_disk, cli, monkeypatch):
    monkeypatch.chdir(full_disk)
    for name in ("convert", "convert with a data file", "verify"):
        done = cli(*COMMANDS[name])
        assert (done.code, done.out) == (2, ""), name
        assert "cannot write the output: No space left on device" in done.err
        assert "free some space or choose another folder" in done.err
        kept(full_disk / "full")
