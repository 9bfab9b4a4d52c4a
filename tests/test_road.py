"""The whole road on real data, step by step as the README shows it: train, export, verify, build, inspect."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from mpdeploy import records
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.report.record import Report

torch.set_num_threads(1)  # tests share the processor
RECIPE = Path(__file__).parents[1] / "models" / "digits_cnn.py"
KINDS = {"fp16": onnx.TensorProto.FLOAT16, "bf16": onnx.TensorProto.BFLOAT16}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    shutil.copy(RECIPE, tmp_path / "models")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_from_training_to_a_verified_engine(checkout, cli):
    trained = cli("train", "models/digits_cnn.py", "--epochs", 2, "-o", "run", "--json")
    assert trained.code == 0, trained.err
    record = trained.document["record"]
    assert record["level"] == "bf16-mixed"
    assert record["metric"] > 0.7  # two epochs; chance is 0.1
    weights = torch.load("run/model.pt", weights_only=True)["weights"]
    assert {t.dtype for t in weights.values() if t.is_floating_point()} == {torch.float32}

    # No other argument: the checkpoint names its recipe, its inputs, its dynamic axis.
    engine = ("--engine", "rtx") if find_spec("tensorrt_rtx") else ()
    exported = cli("export", "run/model.pt", "--precision", "fp16", "--precision", "bf16", *engine, "--json")
    assert exported.code == 0, exported.err
    document = exported.document
    assert document["passed"] is True
    assert document["torch_difference"] < 1e-5
    for stage in ("export to FP32 ONNX", "convert to FP16", "verify BF16", "write the report"):
        assert stage in exported.err

    labels, right = held_out_accuracy("run/export/model.onnx", "run/heldout")
    assert len(labels) == 360
    for model in document["models"]:
        kind = model["precision"]
        path = Path(model["conversion"]["model"])
        assert model["drift"]["verdict"]["passed"] is True
        assert model["drift"]["candidate_run"]["evidence"] is True
        output = model["drift"]["outputs"][0]
        # What the report calls accuracy is what anybody counts with ONNX Runtime.
        assert output["accuracy"]["reference"] == pytest.approx(right)
        assert output["top1"] >= 0.97
        assert 0 < output["norm_relative"] < 0.1
        assert path.stat().st_size < 0.6 * Path("run/export/model.onnx").stat().st_size
        stored = {
            t.name: t.data_type for t in onnx.load(path).graph.initializer if t.data_type != onnx.TensorProto.INT64
        }
        assert KINDS[kind] in stored.values()
        plan = records.load(PrecisionPlan, Path(model["conversion"]["plan"]))
        assert plan.data.samples > 1
        assert all(d.code and d.reason.startswith(d.code) for d in plan.decisions)
        if engine:
            assert Path(model["engine_path"]).stat().st_size == model["engine"]["engine"]["bytes"]
            assert model["engine"]["census"]["compute"].get(kind, 0) > 0

    report = records.load(Report, Path(document["report_json"]))
    assert report.passed
    page = Path(document["report_html"]).read_text()
    assert 5_000 < len(page) < 1_000_000
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page

    # Each step by itself says the same of the same files.
    again = cli("verify", "run/export/model.onnx", "run/export/model.fp16.onnx", "--data", "run/heldout", "--json")
    assert again.code == 0
    first = next(m for m in document["models"] if m["precision"] == "fp16")["drift"]
    assert again.document["outputs"] == first["outputs"]
    inspected = cli("inspect", "run/export/model.fp16.onnx", "--json").document
    assert inspected["inputs"] == ["image float32[batch,1,8,8]"]
    assert json.loads(Path("run/export/model.fp16.plan.json").read_text()) == inspected["plan"]


def held_out_accuracy(model, folder):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    labels, hits = [], []
    for path in sorted(Path(folder).glob("*.npz")):
        with np.load(path) as feed:
            logits = session.run(None, {"image": feed["image"]})[0]
            labels += feed["labels"].tolist()
            hits += (logits.argmax(1) == feed["labels"]).tolist()
    return labels, np.mean(hits)


REGRESSION = """
import numpy as np
import torch
from torch import nn
from mpdeploy.train import Arrays, Data, Metric, Recipe, TensorSpec

def data():
    random = np.random.default_rng(0)
    x = random.standard_normal((160, 6)).astype(np.float32)
    y = (x @ random.standard_normal((6, {width}))).astype(np.float32)
    return Data(Arrays((x[:128],), y[:128]{answers}), Arrays((x[128:],), y[128:]{answers}))

recipe = Recipe(
    inputs=(TensorSpec("x", "float32", ("batch", 6)),), outputs=("y",),
    model=lambda: {model}, data=data,
    optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=3e-2), loss=nn.functional.mse_loss,
    metric=Metric("mean error", lambda y, t: (y - t).abs().flatten(1).mean(1), higher_is_better=False),
    epochs=20, batch_size=32,
)
"""


@pytest.mark.parametrize(
    ("width", "answers", "model"),
    [
        (2, "", "nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))"),
        (1, "", "nn.Linear(6, 1)"),
        (12, ".reshape(-1, 3, 2, 2)", "nn.Sequential(nn.Linear(6, 12), nn.Unflatten(1, (3, 2, 2)))"),
    ],
    ids=["numbers", "one number", "images"],
)
def test_what_a_recipe_learns_need_not_be_classes(width, answers, model, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(REGRESSION.format(width=width, answers=answers, model=model))
    trained = cli("train", "net.py", "-o", "run", "--json")
    assert trained.code == 0, trained.err
    with np.load("run/heldout/0000.npz") as feed:
        assert set(feed.files) == {"x", "targets"}
    exported = cli("export", "run/model.pt", "--recipe", "net.py", "--json")
    assert exported.code == 0, exported.err
    found = exported.document["models"][0]["drift"]["outputs"][0]["targets"]
    assert found["samples"] == 32
    assert found["reference_mae"] == pytest.approx(trained.document["record"]["metric"], rel=1e-3)
    assert found["candidate_mae"] == pytest.approx(found["reference_mae"], rel=0.1, abs=1e-3)
    assert (found["candidate_psnr"] is not None) == (answers != "")
    shown = cli("export", "run/model.pt", "--recipe", "net.py")
    assert "mean error" in shown.out
    assert "accuracy" not in shown.out
    tight = cli("verify", "run/export/model.onnx", "run/export/model.fp16.onnx", "--data", "run/heldout",
                "--budget", "mae_increase<=1e-9", "--json")  # fmt: skip
    assert tight.document["verdict"]["checks"][0]["measured"] is not None
    ignored = cli("verify", "run/export/model.onnx", "run/export/model.fp16.onnx", "--data", "run/heldout",
                  "--ignore-labels", "--json")  # fmt: skip
    assert ignored.document["outputs"][0]["targets"] is None
