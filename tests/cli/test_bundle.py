"""`mpdeploy bundle`, `promote`, `rollback` as a user calls them: one story, then the refusals."""

import json
import os
import subprocess
import sys

import numpy as np
import onnx.parser
import pytest

from mpdeploy.cli.user import user_name
from mpdeploy.files import sha256_of

NET = """<ir_version: 10, opset_import: ["" : 17]>
net (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1,2,3,4}> { y = MatMul(x, w) }"""
HALF = """<ir_version: 10, opset_import: ["" : 17]>
net (float16[N,2] x) => (float16[N,2] y) { y = Relu(x) }"""


def mpdeploy(*words):
    return subprocess.run(
        [sys.executable, "-m", "mpdeploy", *map(str, words)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def export(tmp_path):
    folder = tmp_path / "net"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(onnx.parser.parse_model(NET).SerializeToString())
    return folder


def test_pack_verify_promote_roll_back(export, tmp_path):
    store = tmp_path / "store"
    for version in ("1", "2"):
        bundle = tmp_path / f"net-{version}"
        packed = mpdeploy("bundle", export, "-o", bundle, "--version", version, "--json")
        assert packed.returncode == 0, packed.stderr
        assert json.loads(packed.stdout) == json.loads((bundle / "manifest.json").read_text())
        assert mpdeploy("bundle", "verify", bundle).returncode == 0
        promoted = mpdeploy("promote", bundle, "--store", store, "--why", f"release {version}", "--who", "ann")
        assert promoted.returncode == 0, promoted.stderr
    done = mpdeploy("rollback", "--store", store, "--why", "worse", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["version"] == "1"
    assert (store / "current").resolve().name == "1"
    history = json.loads((store / "history.json").read_text())["entries"]
    assert [(entry["version"], entry["why"]) for entry in history] == [
        ("1", "release 1"), ("2", "release 2"), ("1", "worse"),
    ]  # fmt: skip


RECIPE = """
import numpy as np
import torch
from torch import nn
from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy


def data():
    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int64)
    return Data(Arrays((x[:48],), y[:48]), Arrays((x[48:],), y[48:]))


recipe = Recipe(
    inputs=(TensorSpec("x", "float32", ("batch", 2)),),
    outputs=("logits",),
    model=lambda: nn.Linear(2, 2),
    data=data,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    schedule=lambda optimizer, steps: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps),
    loss=nn.functional.cross_entropy,
    metric=accuracy,
    epochs=1,
    batch_size=16,
)
"""


def test_the_training_run_and_its_held_out_data_go_along(export, tmp_path):
    recipe = tmp_path / "small.py"
    recipe.write_text(RECIPE)
    trained = mpdeploy("train", recipe, "-o", tmp_path / "run", "--seed", "7")
    assert trained.returncode == 0, trained.stderr
    checkpoint = tmp_path / "run" / "model.pt"
    packed = mpdeploy("bundle", export, "-o", tmp_path / "out", "--checkpoint", checkpoint, "--json")
    assert packed.returncode == 0, packed.stderr
    training = json.loads(packed.stdout)["training"]
    assert training["checkpoint_sha256"] == sha256_of(checkpoint)
    assert (training["recipe"], training["recipe_sha256"]) == ("small.py", sha256_of(recipe))
    assert (training["seed"], training["steps_applied"]) == (7, 3)
    assert np.load(tmp_path / "out" / "sample" / "sample.npz")["x"].shape[1] == 2


def test_the_checkpoint_of_an_export_is_found_by_its_hash(tmp_path):
    recipe, run = tmp_path / "small.py", tmp_path / "run"
    recipe.write_text(RECIPE)
    assert mpdeploy("train", recipe, "-o", run).returncode == 0
    exported = mpdeploy("export", run / "model.pt", "--recipe", recipe, "--engine", "none")
    assert exported.returncode in (0, 1), exported.stderr  # so little training may not hold a budget
    packed = json.loads(mpdeploy("bundle", run / "export", "-o", tmp_path / "out", "--json").stdout)
    assert packed["name"] == "run"
    assert packed["training"]["checkpoint_sha256"] == sha256_of(run / "model.pt")
    assert "sample/sample.npz" in {file["path"] for file in packed["files"]}
    (run / "model.pt").write_bytes(b"another")
    packed = json.loads(mpdeploy("bundle", run / "export", "-o", tmp_path / "out", "--json").stdout)
    assert packed["training"] is None


def test_damage_and_a_missing_verdict_exit_with_1(export, tmp_path):
    bundle = tmp_path / "net-bundle"
    (export / "half.onnx").write_bytes(onnx.parser.parse_model(HALF).SerializeToString())
    said = mpdeploy("bundle", export).stdout
    assert "may NOT be promoted" in said
    assert "models/half.onnx  fp16  not verified" in said
    assert "models/model.onnx  fp32  reference" in said
    refused = mpdeploy("promote", bundle, "--store", tmp_path / "store", "--why", "hope")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "no drift report is about it" in refused.stderr
    (bundle / "models" / "model.onnx").write_bytes(b"damage")
    damaged = mpdeploy("bundle", "verify", bundle)
    assert damaged.returncode == 1
    assert "models/model.onnx differs" in damaged.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["bundle", "nowhere"], 2, "no such folder"),
        (["bundle", "verify", "nowhere"], 2, "not a bundle"),
        (["promote", "nowhere", "--store", "s", "--why", "w"], 2, "not a bundle"),
        (["rollback", "--store", "s", "--why", "w"], 2, "no such store"),
        (["rollback", "--store", ".", "--why", "w"], 2, "no release before"),
        (["rollback", "--store", ".", "--why", " "], 2, "--why is empty"),
        (["rollback", "--store", "s"], 2, "--why"),
    ],
)
def test_refusals_are_one_line(tmp_path, monkeypatch, words, code, says):
    monkeypatch.chdir(tmp_path)
    done = mpdeploy(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_user_without_a_name_has_a_number(monkeypatch):
    """As in a container that runs as a number which no one entered into its list of users."""

    def unknown():
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", unknown)
    assert user_name() == f"uid {os.getuid()}"


def test_an_earlier_bundle_stays_in_service(export, tmp_path):
    pytest.importorskip("tritonclient", reason="tritonclient is not installed")
    assert mpdeploy("bundle", export, "-o", tmp_path / "one", "--triton").returncode == 0
    done = mpdeploy("bundle", export, "-o", tmp_path / "two", "--triton-after", tmp_path / "one")
    assert "model_onnx version 1 of net" in done.stdout
    assert {path.name for path in (tmp_path / "two/triton/model_onnx").iterdir()} == {"1", "2", "config.pbtxt"}
