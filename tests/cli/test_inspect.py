"""`mpdeploy inspect`: every kind of file explained."""

import json

import numpy as np
import pytest

from mpdeploy.conversion.api import convert


@pytest.fixture
def low(net, data, tmp_path):
    path = tmp_path / "low.onnx"
    convert(net, path, precision="fp16", data=str(data))
    return path


def test_an_fp32_model(cli, net):
    done = cli("inspect", net)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == f"{net}: ONNX, opset 17, IR 8, 6 nodes, {net.stat().st_size:,} bytes"
    assert "  input   x float32[N,16]" in lines
    assert "  output  logits float32[N,4]" in lines
    assert "  weights 640 fp32" in lines
    assert not any(line.startswith("  plan") for line in lines)


def test_a_converted_model_tells_why(cli, low):
    done = cli("inspect", low)
    assert done.code == 0
    assert "plan    fp16, policy balanced, ranges from" in done.out
    assert "x fp32  e.g. " in done.out
    assert "MP1" in done.out
    document = cli("inspect", low, "--json").document
    assert document["inputs"] == ["x float32[N,16]"]
    assert document["plan"]["precision"] == "fp16"
    assert document["model"]["weights"] == {"fp16": 640}


def test_one_node_or_value_or_several(cli, low):
    done = cli("inspect", low, "--node", "grow")
    assert done.code == 0
    assert done.out.startswith("fp32  Exp 'grow'  (energy)\n      MP1")
    assert cli("inspect", low, "--node", "energy").out == done.out
    several = cli("inspect", low, "--node", "*ir*", "--json").document
    assert [d["node"] for d in several] == ["first", "third"]
    nobody = cli("inspect", low, "--node", "nobody")
    assert (nobody.code, nobody.out) == (2, "")
    assert "no node or value 'nobody'" in nobody.err


def test_two_plans_side_by_side(cli, net, low, tmp_path):
    convert(net, tmp_path / "other.onnx", precision="fp16", keep_fp32=("third",))
    done = cli("inspect", low, "--diff", tmp_path / "other.plan.json")
    assert done.code == 0
    assert "third: fp16 -> fp32   MP601" in done.out
    same = cli("inspect", low, "--diff", low)
    assert same.out == "0 decisions differ\n"


def test_a_plan_and_a_report(cli, net, data, low, tmp_path):
    plan = tmp_path / "low.plan.json"
    assert "policy balanced" in cli("inspect", plan).out
    assert cli("inspect", plan, "--json").document == json.loads(plan.read_text())
    assert cli("verify", net, low, "--data", data, "--report", tmp_path / "report").code == 0
    report = tmp_path / "report" / "report.json"
    assert "PASSED" in cli("inspect", report).out
    assert cli("inspect", report, "--json").document["schema"].startswith("mpdeploy.report/")


def test_an_engine_by_itself_or_by_its_sidecar(cli, tmp_path, low):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    engine = tmp_path / "low.engine"
    built = cli("build", low, "-o", engine, "--shapes", "x:1x16:4x16:8x16", "--sm", "86", "--json")
    assert built.code == 0, built.err
    for path in (engine, tmp_path / "low.engine.json"):
        assert cli("inspect", path, "--json").document == built.document
        done = cli("inspect", path)
        assert (done.code, done.err) == (0, "")
        assert "runs on     SM 86" in done.out
        assert "input       x fp32[" in done.out
        assert "built from  low.onnx, SHA-256" in done.out
    engine.write_bytes(b"another")
    changed = cli("inspect", engine)
    assert (changed.code, changed.out) == (2, "")
    assert "cut off" in changed.err


def test_a_checkpoint(cli, tmp_path):
    from mpdeploy.train.loading import load_recipe
    from mpdeploy.train.loop import Settings, Training

    recipe = tmp_path / "tiny.py"
    recipe.write_text(
        "import numpy as np, torch\nfrom torch import nn\n"
        "from mpdeploy.train import Arrays, Data, Recipe, TensorSpec, accuracy\n"
        "x, y = np.zeros((8, 2), np.float32), np.zeros(8, np.int64)\n"
        "recipe = Recipe((TensorSpec('x', 'float32', ('n', 2)),), ('y',), lambda: nn.Linear(2, 2),\n"
        "    lambda: Data(Arrays((x,), y), Arrays((x,), y)), lambda m: torch.optim.SGD(m.parameters(), 0.1),\n"
        "    nn.functional.cross_entropy, accuracy, 1, 4)\n"
    )
    loaded = load_recipe(recipe)
    training = Training(loaded, tmp_path / "run", Settings(loaded.recipe.level, 1))
    list(training.steps())
    training.finish()
    done = cli("inspect", tmp_path / "run" / "model.pt")
    assert (done.code, done.err) == (0, "")
    assert "trained by tiny.py (" in done.out
    assert "input   x float32[n,2]" in done.out
    assert "2 applied, 0 skipped, in 1 epochs" in done.out
    assert cli("inspect", tmp_path / "run" / "model.pt", "--json").document["recipe"]["file"] == "tiny.py"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none.onnx", "file not found"),
        ("empty.json", "file is empty"),
        ("text.txt", "not a file that inspect knows"),
        ("other.json", "not a file that inspect knows"),
        ("list.json", "not a file that inspect knows"),
        ("old.json", "not a file that inspect knows"),
        ("half.json", "not a valid PrecisionPlan"),
        ("binary.bin", "not a file that inspect knows"),
        ("data.npz", "not a file that inspect knows"),
        ("text.onnx", "not an ONNX model"),
        ("text.pt", "damaged or not a torch file"),
        (".", "folder"),
    ],
)
def test_what_it_does_not_know(cli, tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=np.zeros(3))
    contents = {
        "empty.json": b"",
        "text.txt": b"hello",
        "text.onnx": b"hello",
        "text.pt": b"hello",
        "other.json": b'{"a": 1}',
        "list.json": b"[1, 2]",
        "old.json": b'{"schema": "mpdeploy.plan/0"}',
        "half.json": b'{"schema": "mpdeploy.plan/1"}',
        "binary.bin": bytes(range(256)),
    }
    for file, content in contents.items():
        (tmp_path / file).write_bytes(content)
    done = cli("inspect", name)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_an_export_and_a_release(cli, net, data, tmp_path):
    assert cli("export", net, "--data", data, "-o", tmp_path / "out", "--json").code == 0
    done = cli("inspect", tmp_path / "out" / "manifest.json")
    assert (done.code, done.err) == (0, "")
    assert "an export of net.onnx" in done.out
    assert "pass" in done.out
    assert "model.fp16.plan.json" in done.out
    assert cli("bundle", tmp_path / "out", "-o", tmp_path / "release").code == 0
    done = cli("inspect", tmp_path / "release" / "manifest.json")
    assert (done.code, done.err) == (0, "")
    assert "may be promoted" in done.out
    assert "models/model.fp16.onnx  fp16: every output is within budget" in done.out
