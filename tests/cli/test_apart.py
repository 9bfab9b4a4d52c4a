"""No output replaces a file that the command reads, whatever it is called: exit code 2, and nothing has changed."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,16] x) => (float[N,4] y) { [first] y = MatMul(x, w) }"""
METRIC = "def half(reference, candidate, feed):\n    return 0.5\n"


@pytest.fixture
def folder(tmp_path, monkeypatch, cli):
    """A model, one with its weights outside, links to it, data, a plan, a report; the test stands among them."""
    monkeypatch.chdir(tmp_path)
    model = onnx.parser.parse_model(NET)
    weight = np.random.default_rng(3).standard_normal((16, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(model, "m.onnx")
    outside = {"save_as_external_data": True, "size_threshold": 0}
    onnx.save(onnx.load("m.onnx"), "outside.onnx", location="w.onnx", **outside)
    onnx.save(onnx.load("m.onnx"), "twin.onnx", location="low.onnx.0123456789ab.data", **outside)
    Path("soft.onnx").symlink_to("m.onnx")
    os.link("m.onnx", "hard.onnx")
    Path("data").mkdir()
    np.savez("data/0.npz", x=np.ones((8, 16), np.float32))
    np.savez("one.npz", x=np.ones((8, 16), np.float32))
    Path("metric.py").write_text(METRIC)
    assert cli("convert", "m.onnx", "-o", "low.onnx", "--precision", "fp16").code == 0
    Path("low.plan.json").rename("edited.plan.json")
    assert cli("verify", "m.onnx", "low.onnx", "--data", "one.npz", "--report", "last").code == 0
    Path("budgets.toml").write_text('[verify]\nbudget = "cosine>=0.9"\n')
    return tmp_path


LOW = ("--precision", "fp16")
VERIFY = ("verify", "m.onnx", "low.onnx", "--data", "one.npz")
CASES = {
    "the model": (("convert", "m.onnx", "-o", "m.onnx", *LOW), "m.onnx"),
    "the model, spelled otherwise": (("convert", "m.onnx", "-o", "data/../m.onnx", *LOW), "m.onnx"),
    "a symbolic link to it": (("convert", "m.onnx", "-o", "soft.onnx", *LOW), "m.onnx"),
    "what a link leads to": (("convert", "soft.onnx", "-o", "m.onnx", *LOW), "soft.onnx"),
    "a hard link to it": (("convert", "m.onnx", "-o", "hard.onnx", *LOW), "m.onnx"),
    "its weights": (("convert", "outside.onnx", "-o", "w.onnx", *LOW), "w.onnx"),
    "weights named as an older output's": (("convert", "twin.onnx", "-o", "low.onnx", *LOW), "0123456789ab.data"),
    "a converted model": (("convert", "low.onnx", "-o", "low.onnx", *LOW), "low.onnx"),
    "the plan": (
        ("convert", "m.onnx", "-o", "edited.onnx", *LOW, "--plan", "edited.plan.json"), "edited.plan.json"
    ),
    "the data": (("convert", "m.onnx", "-o", "d.onnx", *LOW, "--data", "d.plan.json"), "d.plan.json"),
    "the ranges": (("convert", "m.onnx", "-o", "r.onnx", *LOW, "--ranges", "r.plan.json"), "r.plan.json"),
    "search: the model": (("search", "m.onnx", "-o", "m.onnx", *LOW, "--data", "data"), "m.onnx"),
    "search: data in the report's place": (
        ("search", "m.onnx", "-o", "s.onnx", *LOW, "--data", "last/report.json", "--report", "last"), "report.json"
    ),
    "export: the model": (("export", "copy/model.fp16.onnx", "-o", "copy"), "copy/model.fp16.onnx"),
    "export: what a link leads to": (("export", "link.onnx", "-o", "copy"), "link.onnx"),
    "export: its weights": (("export", "beside/model.onnx", "-o", "beside"), "beside/model.onnx"),
    "export: the data": (
        ("export", "m.onnx", "-o", "copy", "--data", "copy/report.json"), "copy/report.json"
    ),
    "verify: the baseline": ((*VERIFY, "--baseline", "last/report.json", "--report", "last"), "last/report.json"),
    "verify: JUnit over the reference": ((*VERIFY, "--junit", "m.onnx"), "m.onnx"),
    "verify: JUnit over the candidate": ((*VERIFY, "--junit", "low.onnx"), "low.onnx"),
    "verify: Markdown over the data": ((*VERIFY, "--markdown", "one.npz"), "one.npz"),
    "verify: Markdown over the settings": (
        (*VERIFY, "--settings", "budgets.toml", "--markdown", "budgets.toml"), "budgets.toml"
    ),
    "verify: Markdown over a metric": (
        (*VERIFY, "--metric", "metric.py:half", "--markdown", "metric.py"), "metric.py"
    ),
    "verify: two outputs": ((*VERIFY, "--markdown", "new", "--junit", "new"), "new"),
    "run: the data": (("run", "m.onnx", "--data", "one.npz", "-o", "one.npz"), "one.npz"),
    "run: the folder of data": (("run", "m.onnx", "--data", "data", "-o", "data"), "data"),
    "run: a file of the folder of data": (("run", "m.onnx", "--data", "data", "-o", "data/0.npz"), "0.npz"),
    "bench: the model": (("bench", "last/bench.json", "--report", "last"), "bench.json"),
    "build: the model": (("build", "m.onnx", "-o", "m.onnx"), "m.onnx"),
    "build: the weights": (("build", "outside.onnx", "-o", "w.onnx"), "w.onnx"),
    "build: the plan, by the sidecar": (
        ("build", "m.onnx", "-o", "edited.plan", "--plan", "edited.plan.json"), "edited.plan.json"
    ),
    "build: the model, by the timing cache": (("build", "m.onnx", "-o", "e", "--timing-cache", "m.onnx"), "m.onnx"),
    "train: the recipe": (("train", "telemetry.jsonl", "-o", "."), "telemetry.jsonl"),
    "train: the recipe, by a folder": (("train", "heldout/recipe.py", "-o", "."), "heldout/recipe.py"),
    "bundle: the key": (("bundle", "copy", "-o", "old", "--sign", "old/key.pem"), "key.pem"),
}  # fmt: skip
RECIPE = Path(__file__).parents[2] / "models" / "digits_cnn.py"


@pytest.mark.parametrize("name", CASES)
def test_what_is_read_is_not_replaced(cli, folder, name):
    words, lost = CASES[name]
    Path("link.onnx").symlink_to("copy/model.onnx")
    Path("beside").mkdir()
    onnx.save(onnx.load("m.onnx"), "beside/model.onnx", save_as_external_data=True, location="w", size_threshold=0)
    for place in ("copy/model.onnx", "copy/model.fp16.onnx", "copy/report.json", "last/bench.json"):
        Path(place).parent.mkdir(exist_ok=True)
        Path(place).write_bytes(Path("m.onnx").read_bytes())
    for place in ("d.plan.json", "r.plan.json"):
        Path(place).write_bytes(Path("one.npz").read_bytes())
    for place in ("heldout/recipe.py", "telemetry.jsonl"):
        Path(place).parent.mkdir(exist_ok=True)
        Path(place).write_bytes(RECIPE.read_bytes())
    Path("old").mkdir()
    Path("old/key.pem").write_text("x")
    Path("old/manifest.json").write_text("{}")
    Path("old/manifest.sha256").write_text("x")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = cli(*words, "-q")
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.count("\n") == 1
    assert lost in done.err
    assert "is read" in done.err or "two outputs" in done.err, done.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert Path("m.onnx").samefile("hard.onnx")
    assert Path("soft.onnx").is_symlink()


def test_a_name_beside_is_fine(cli, folder):
    assert cli("convert", "m.onnx", "-o", "other.onnx", *LOW, "--plan", "edited.plan.json").code == 0
    assert cli("convert", "outside.onnx", "-o", "low.onnx", *LOW).code == 0
    assert cli("convert", "outside.onnx", "-o", "low.onnx", *LOW).code == 0, "the command's own older output"
    assert cli(*VERIFY, "--report", "last").code == 0


@pytest.mark.parametrize("name", ["low.txt", "low", "low.pt", "low.onnx.bin"])
def test_a_model_has_the_name_of_a_model(cli, folder, name):
    for command in (("convert",), ("search", "--data", "data")):
        done = cli(*command, "m.onnx", "-o", name, *LOW)
        assert done.code == 2
        assert "ends in .onnx" in done.err
        assert not Path(name).exists()


@pytest.mark.parametrize("length", [240, 250, 255, 300])
def test_a_name_too_long_is_refused_before_the_work(cli, folder, length):
    name = "n" * (length - 5) + ".onnx"
    done = cli("convert", "m.onnx", "-o", name, *LOW)
    assert done.code == (0 if length <= 250 else 2), done.err
    assert done.code == 0 or "File name too long" in done.err
    assert sorted(path.name for path in folder.glob("n*")) == ([] if done.code else [name, f"{name[:-5]}.plan.json"])
