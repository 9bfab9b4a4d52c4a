"""`mpdeploy export` as a user calls it: from a checkpoint to verified models, in the folder it was trained in."""

import json
import os
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import mpdeploy
from mpdeploy.cli import main
from mpdeploy.engine.gpu import find_gpus
from mpdeploy.errors import UsageError
from mpdeploy.files import sha256_of

torch.set_num_threads(1)  # tests share the processor

# Two clouds of points that a small network tells apart at once.
RECIPE = """
import numpy as np
import torch
from torch import nn
from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy


def data():
    rng = np.random.default_rng(0)
    labels = np.arange(320, dtype=np.int64) % 2
    x = rng.normal(size=(320, 8)).astype(np.float32) + 3 * labels[:, None].astype(np.float32)
    return Data(Arrays((x[:256],), labels[:256]), Arrays((x[256:],), labels[256:]))


recipe = Recipe(
    inputs=(TensorSpec("point", "float32", ("batch", 8)),),
    outputs=("logits",),
    model=lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)),
    data=data,
    optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    loss=nn.functional.cross_entropy,
    metric=accuracy,
    epochs=2,
    batch_size=32,
)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A checkout: models/clouds.py, and what its training left under runs/clouds."""
    home, before = tmp_path_factory.mktemp("checkout"), Path.cwd()
    (home / "models").mkdir()
    (home / "models" / "clouds.py").write_text(RECIPE)
    os.chdir(home)
    try:
        with pytest.raises(SystemExit) as caught:
            main(["train", "models/clouds.py", "-q"])
    finally:
        os.chdir(before)
    assert not caught.value.code
    return home


@pytest.fixture
def checkout(trained, tmp_path, monkeypatch):
    """A copy that a test may change; the test stands in it."""
    shutil.copytree(trained, tmp_path / "checkout")
    monkeypatch.chdir(tmp_path / "checkout")
    return Path("runs/clouds/model.pt")


def test_one_argument_is_enough(cli, checkout):
    done = cli("export", checkout)
    assert done.code == 0, done.err
    assert {p.name for p in checkout.parent.joinpath("export").iterdir()} >= {
        "model.onnx", "model.fp16.onnx", "model.fp16.plan.json", "report.html", "report.json"
    }  # fmt: skip
    lines = done.out.splitlines()
    assert lines[0].split() == ["format", "accuracy", "top-1", "as", "FP32", "worst", "drift", "file", "verdict"]
    assert [line.split()[0] for line in lines[1:3]] == ["fp32", "fp16"]
    assert lines[2].split()[3:5] == ["100", "%"]
    assert lines[-1] == "verdict  pass: runs/clouds/export/model.fp16.onnx"
    assert "convert to FP16" in done.err
    model = onnx.load("runs/clouds/export/model.fp16.onnx")
    assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == ["batch", 8]
    assert [model.graph.input[0].name, model.graph.output[0].name] == ["point", "logits"]


def test_json_and_both_formats_into_another_folder(cli, checkout):
    words = ("--precision", "fp16", "--precision", "bf16", "--budget", "top1>=0.9", "-o", "out")
    done = cli("export", checkout, *words, "--json", "-q")
    assert (done.code, done.err) == (0, "")
    document = done.document
    assert document["schema"] == "mpdeploy.export/1"
    assert document["passed"] is True
    assert [m["precision"] for m in document["models"]] == ["fp16", "bf16"]
    for model in document["models"]:
        assert Path(model["conversion"]["model"]).stat().st_size == model["conversion"]["model_bytes"]
        assert model["drift"]["verdict"]["passed"] is True
    # The report holds the very command that made it.
    report = json.loads(Path(document["report_json"]).read_text())
    assert report["commands"] == [
        "mpdeploy export runs/clouds/model.pt -o out --precision fp16 --precision bf16 --budget 'top1>=0.9'"
    ]


def test_over_budget_is_exit_code_1_and_everything_is_kept(cli, checkout):
    done = cli("export", checkout, "--budget", "max_abs<=0")
    assert done.code == 1
    assert "verdict  FAIL" in done.out
    assert "Traceback" not in done.err
    assert Path("runs/clouds/export/model.fp16.onnx").is_file()
    assert Path("runs/clouds/export/report.html").is_file()


def test_other_data(cli, checkout):
    np.savez("other.npz", point=np.zeros((3, 8), np.float32))
    done = cli("export", checkout, "--data", "other.npz", "--json")
    assert done.code == 0, done.err
    assert done.document["models"][0]["drift"]["data"]["samples"] == 3


def test_an_engine_where_its_library_is(cli, checkout):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    np.savez("points.npz", point=np.zeros((3, 8), np.float32))
    done = cli("export", checkout, "--data", "points.npz", "--engine", "rtx", "--json")
    assert done.code == 0, done.err
    engine = done.document["models"][0]
    assert Path(engine["engine_path"]).stat().st_size == engine["engine"]["engine"]["bytes"]
    assert engine["engine"]["expected"] == "fp16"
    # `build` of the same model with the same data chooses the same shapes.
    built = cli("build", engine["conversion"]["model"], "-o", "again.engine", "--data", "points.npz", "--json")
    assert built.code == 0, built.err
    assert built.document["options"]["profiles"] == engine["engine"]["options"]["profiles"]
    assert built.document["options"]["profiles"][0]["ranges"][0]["min"] == [1, 8]


@pytest.mark.skipif(bool(find_spec("tensorrt") and find_gpus()), reason="TensorRT and a GPU are here")
def test_a_missing_back_end_is_told_before_the_work(cli, checkout):
    done = cli("export", checkout, "--engine", "tensorrt")
    assert (done.code, done.out) == (4, "")
    assert done.err.splitlines()[-1].startswith("mpdeploy: ")
    assert not Path("runs/clouds/export").exists()


def test_from_elsewhere_the_recipe_must_be_pointed_at(cli, checkout, tmp_path, monkeypatch):
    model, recipe = checkout.resolve(), Path("models/clouds.py").resolve()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = cli("export", model, "-q")
    assert (done.code, done.out) == (2, "")
    assert "--recipe FILE" in done.err
    assert cli("export", model, "--recipe", recipe, "-q").code == 0


def test_another_recipe_is_never_imported(cli, checkout):
    trap = Path("models/clouds.py")
    trap.write_text("import pathlib\npathlib.Path('executed').touch()\n" + trap.read_text())
    done = cli("export", checkout, "-q")
    assert (done.code, done.out) == (2, "")
    assert "not the recipe that the checkpoint was trained with" in done.err
    assert not Path("executed").exists()
    assert not Path("runs/clouds/export").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("none.pt",), "model not found"),
        (("empty.pt",), "empty"),
        (("models/clouds.py",), "not a model in any form"),
        (("cut.pt",), "the archive is damaged"),
        (("runs/clouds/model.pt", "--precision", "int8"), "'int8' is not one of 'fp16', 'bf16'"),
        (("runs/clouds/model.pt", "--budget", "beauty>=1"), "unknown metric"),
        (("runs/clouds/model.pt", "--data", "none.npz"), "data file not found"),
        (("runs/clouds/model.pt", "--data", "wrong.npz"), "lacks input 'point', it holds x"),
        (("runs/clouds/model.pt", "--recipe", "none.py"), "recipe not found"),
        (("runs/clouds/model.pt", "-o", "file"), "cannot write the output"),
        (("runs/clouds/model.pt", "--engine", "openvino"), "not one of"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(cli, checkout, words, says):
    Path("empty.pt").touch()
    Path("cut.pt").write_bytes(checkout.read_bytes()[:3000])
    Path("file").write_text("in the way")
    np.savez("wrong.npz", x=np.zeros((1, 8), np.float32))
    done = cli("export", *words, "-q")
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1
    assert Path("file").read_text() == "in the way"


# --- models that somebody else made


FACTORY = """
from torch import nn


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
"""


@pytest.fixture
def foreign(tmp_path, monkeypatch, net):
    """A folder with a state dict in half precision, a pickled module, a plain ONNX model; the test stands in it."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(FACTORY)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    torch.save({"model": module.state_dict(), "ema": module.half().state_dict(), "epoch": 3}, "both.pt")
    torch.save(module, "whole.pt")
    return tmp_path


def test_a_state_dict_with_its_model_and_inputs(cli, foreign):
    words = ("export", "both.pt", "--model", "net.py:net", "--input", "point:batch,8", "--weights", "ema", "-o", "out")
    done = cli(*words)
    assert done.code == 0, done.err
    notes = [line for line in done.out.splitlines() if line.startswith("note")]
    assert "the entry `ema`" in notes[0]
    assert "float16" in notes[1]
    assert "random inputs" in notes[2]
    assert done.out.splitlines()[-1] == "verdict  pass: out/model.fp16.onnx"
    report = json.loads(Path("out/report.json").read_text())
    assert report["commands"] == ["mpdeploy " + " ".join(words[:2]) + " -o out " + " ".join(words[2:-2])]
    manifest = json.loads(Path("out/manifest.json").read_text())
    assert {file["path"] for file in manifest["files"]} == {
        "model.onnx", "model.fp16.onnx", "model.fp16.plan.json", "report.html", "report.json"
    }  # fmt: skip
    for file in manifest["files"]:
        assert sha256_of(Path("out") / file["path"]) == file["sha256"]


def test_an_onnx_file_skips_the_export(cli, foreign):
    done = cli("export", "net.onnx", "-o", "out", "--precision", "bf16", "--json", "-q")
    assert done.code == 0, done.err
    assert done.document["torch_difference"] is None
    assert Path("out/model.onnx").read_bytes() == Path("net.onnx").read_bytes()
    in_place = cli("export", "out/model.onnx", "-o", "out", "-q")
    assert in_place.code == 0, in_place.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("both.pt", "--weights", "ema"), 2, "not the model they belong to"),
        (("both.pt", "--model", "net.py:net"), 2, "both raw weights and their average"),
        (("both.pt", "--model", "net.py:net", "--weights", "model"), 2, "does not say what the model takes"),
        (("both.pt", "--model", "net.py:none", "--weights", "model"), 2, "no function 'none'"),
        (("whole.pt", "--input", "x:batch,8"), 3, "torch.nn.modules.linear.Linear"),
        (("whole.pt", "--input", "x", "--trust"), 2, "has no shape"),
        (("whole.pt", "--input", "x:batch,9", "--trust"), 2, "the model fails on x [4, 9]"),
    ],
)
def test_what_a_foreign_model_lacks_is_told_in_one_line(cli, foreign, words, code, says):
    done = cli("export", *words, "-q", "-o", "out")
    assert (done.code, done.out) == (code, ""), done.err
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not Path("out").exists()


def test_from_python_with_the_words_of_the_flags(foreign):
    result = mpdeploy.export("both.pt", "out", factory="net.py:net", inputs=("point:batch,8",), weights="model")
    assert result.passed
    assert [Path(m.conversion.model).name for m in result.models] == ["model.fp16.onnx"]
    with pytest.raises(UsageError, match="unknown precision 'int8'"):
        mpdeploy.export("both.pt", precision="int8")


class Plant:
    def __init__(self, marker) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_s2_a_planted_call_is_refused_and_never_made(cli, foreign):
    torch.save({"state_dict": {"w": torch.ones(2)}, "x": Plant("marker")}, "trap.pt")
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, "whole.pt2")
    with zipfile.ZipFile("whole.pt2") as source, zipfile.ZipFile("trap.pt2", "w") as out:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename.endswith("models/model.json"):
                content = content.replace(b"torch.ops.aten.linear.default", b"torch.serialization.os.system")
            out.writestr(entry.filename, content)
    for name in ("trap.pt", "trap.pt2"):
        done = cli("export", name, "--model", "net.py:net", "--input", "x:batch,2", "-o", "out", "-q")
        assert (done.code, done.out) == (3, "")
        assert "system" in done.err
    assert not Path("marker").exists()
    assert not Path("out").exists()
