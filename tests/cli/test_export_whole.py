"""The folder of an export is that of one run, whatever was there before and however the run ends."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from mpdeploy.files import sha256_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("one", 1), ("two", 2)):
        weight = np.random.default_rng(seed).standard_normal((16, 16)).astype(np.float32)
        inputs, outputs = ([helper.make_tensor_value_info(n, 1, ["N", 16])] for n in "xy")
        node = helper.make_node("MatMul", ["x", "w"], ["y"])
        graph = helper.make_graph([node], "g", inputs, outputs, [numpy_helper.from_array(weight, "w")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, f"{name}.onnx")
        onnx.save(model, f"{name}-outside.onnx", save_as_external_data=True, location=f"{name}.bin", size_threshold=0)
    np.savez("data.npz", x=np.ones((4, 16), np.float32))
    return tmp_path


def whole(folder: Path) -> dict[str, object]:
    """The manifest of an export all of whose files are those that it names."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for file in manifest["files"]:
        assert sha256_of(folder / file["path"]) == file["sha256"]
    return manifest


def test_the_folder_holds_one_run_and_the_files_of_others(cli, folder):
    first = ("export", "one-outside.onnx", "-o", "out", "--precision", "fp16", "--precision", "bf16", "-q")
    assert cli(*first, "--data", "data.npz").code == 0
    Path("out/notes.txt").write_text("mine")
    assert cli("export", "two.onnx", "-o", "out", "--data", "data.npz", "-q").code == 0
    manifest = whole(Path("out"))
    listed = {file["path"] for file in manifest["files"]} | {"manifest.json", "notes.txt"}
    assert {path.name for path in Path("out").iterdir()} == listed
    assert manifest["source"] == "two.onnx"
    assert Path("out/notes.txt").read_text() == "mine"


def test_nothing_tells_of_the_place_where_it_was_made(cli, folder):
    done = cli("export", "one.onnx", "-o", "out", "--data", "data.npz", "--json")
    assert done.code == 0, done.err
    for path in Path("out").iterdir():
        assert b".mpdeploy-" not in path.read_bytes(), path
    assert ".mpdeploy-" not in done.out + done.err
    assert done.document["models"][0]["conversion"]["model"] == "out/model.fp16.onnx"
    assert done.document["models"][0]["drift"]["candidate"]["path"] == "out/model.fp16.onnx"
    assert Path(done.document["report_html"]).is_file()


def test_a_failure_leaves_what_was_there(cli, folder):
    assert cli("export", "one.onnx", "-o", "out", "--data", "data.npz", "-q").code == 0
    before = {path: path.read_bytes() for path in Path("out").iterdir()}
    np.savez("wrong.npz", z=np.ones((4, 16), np.float32))
    done = cli("export", "two.onnx", "-o", "out", "--data", "wrong.npz", "-q")
    assert done.code == 2
    assert ".mpdeploy-" not in done.err
    assert {path: path.read_bytes() for path in Path("out").iterdir()} == before
    assert cli("export", "two.onnx", "-o", "new", "--data", "wrong.npz", "-q").code == 2
    assert not Path("new").exists()
