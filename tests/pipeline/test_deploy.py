"""The stages of a deployment: which are done, which are not done again, what a person finds."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from mpdeploy import records
from mpdeploy.bundle.check import check_bundle
from mpdeploy.bundle.manifest import Role
from mpdeploy.errors import DependencyError, UsageError
from mpdeploy.pipeline import deploy, read_deployment
from mpdeploy.pipeline.manifest import ExportManifest
from mpdeploy.pipeline.stages import StageRecord
from mpdeploy.plan.record import PrecisionPlan

ALL = ["train", "export", "convert-fp16", "verify-fp16", "report", "bundle"]


def run():
    return deploy(read_deployment(Path("deploy.toml")))


def anew(result):
    return [stage.name for stage in result.stages if not stage.reused]


def edit(old, new):
    text = Path("deploy.toml").read_text()
    assert old in text
    Path("deploy.toml").write_text(text.replace(old, new))


def test_each_stage_is_done_when_what_it_is_made_from_changed(home):
    first = run()
    assert first.passed
    assert [stage.name for stage in first.stages] == anew(first) == ALL
    assert {p.name for p in Path("out/latest").iterdir()} >= {
        "model.onnx", "model.fp16.onnx", "model.fp16.plan.json", "report.html", "report.json", "ranges.json",
        "model.pt", "manifest.json",
    }  # fmt: skip
    assert check_bundle(Path("out/release")).training.seed == 1
    manifest = records.load(ExportManifest, Path("out/latest/manifest.json"))
    for file in manifest.files:
        assert (Path("out/latest") / file.path).stat().st_size == file.bytes

    assert anew(run()) == []
    edit('precision = ["fp16"]', 'precision = ["fp16", "bf16"]')
    assert anew(run()) == ["convert-bf16", "verify-bf16", "report", "bundle"]
    edit("[bundle]", '[verify]\nbudget = "top1>=0.9"\n\n[bundle]')
    assert anew(run()) == ["verify-fp16", "verify-bf16", "report", "bundle"]
    edit('name = "clouds"', 'name = "clouds"\nversion = "2"\ntriton = true')
    assert anew(run()) == ["bundle"]
    manifest = check_bundle(Path("out/release"))
    assert manifest.version == "2"
    assert {file.role for file in manifest.files} >= {Role.SERVING, Role.SAMPLE}
    edit("seed = 1", "seed = 2")
    last = run()
    assert anew(last)[:2] == ["train", "export"]
    assert check_bundle(Path("out/release")).training.seed == 2
    # Only what the links lead to, and what the last run used, is kept.
    assert sorted(p.name for p in Path("out/stages").iterdir()) == sorted(Path(s.folder).name for s in last.stages)
    Path("clouds.py").write_text(Path("clouds.py").read_text().replace("lr=1e-2", "lr=2e-2"))
    assert anew(run())[:2] == ["train", "export"]


def test_a_changed_result_is_made_again_and_what_is_equal_needs_no_proof(home):
    run()
    model = next(Path("out/stages").glob("convert-fp16-*/model.fp16.onnx"))
    whole = model.read_bytes()
    model.write_bytes(whole[:-1] + b"x")
    # The report's folder holds the same file.  The model that is made again is the same: nothing to verify.
    done = anew(run())
    assert done[:2] == ["convert-fp16", "report"]
    assert "verify-fp16" not in done
    assert model.read_bytes() == whole


def test_over_budget_there_is_a_report_and_no_release(home):
    good = run()
    edit("[bundle]", '[verify]\nbudget = "max_abs<=0"\n\n[bundle]')
    bad = run()
    assert not bad.passed
    assert bad.release == ""
    assert [stage.name for stage in bad.stages][-1] == "report"
    assert json.loads(Path("out/latest/report.json").read_text())["drifts"][0]["verdict"]["passed"] is False
    assert records.load(ExportManifest, Path("out/latest/manifest.json")).passed is False
    # What was released stays, whole, although the models it was made from are of another run.
    assert check_bundle(Path("out/release")).passed
    assert good.release == "out/release"


def test_a_model_that_is_there_with_data_and_an_engine(home):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    trained = run()
    np.savez("data.npz", point=np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32))
    Path("models").mkdir()
    Path("deploy.toml").write_text(
        f'output = "two"\n[model]\npath = "{trained.reference}"\n[verify]\ndata = "data.npz"\n[build]\nsm = [86]\n'
    )
    result = run()
    assert [stage.name for stage in result.stages] == ["export", "convert-fp16", "verify-fp16", "build-fp16", "report"]
    assert result.passed
    assert Path("two/latest/model.fp16.engine").stat().st_size == result.models[0].engine.engine.bytes
    assert anew(run()) == []
    edit("sm = [86]", "sm = [89]")
    assert anew(run()) == ["build-fp16", "report"]
    np.savez("data.npz", point=np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32))
    assert anew(run())[:2] == ["export", "convert-fp16"]


def test_a_change_beside_the_models_code_is_seen(home):
    Path("blocks.py").write_text("from torch import nn\n\n\ndef last():\n    return nn.Identity()\n")
    Path("net.py").write_text(
        "from torch import nn\n\nimport blocks\n\n\n"
        "def net():\n    return nn.Sequential(nn.Linear(8, 2), blocks.last())\n"
    )
    torch.save(torch.nn.Sequential(torch.nn.Linear(8, 2)).state_dict(), "net.pth")
    Path("deploy.toml").write_text(
        'output = "two"\n[model]\npath = "net.pth"\nfactory = "net.py:net"\ninputs = ["x:batch,8"]\n'
        '[verify]\ndata = "samples.py:samples"\n'
    )
    Path("samples.py").write_text(
        "import numpy as np\n\n\ndef samples():\n"
        "    yield {'x': np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)}\n"
    )
    assert "export" in anew(run())
    assert anew(run()) == []
    Path("blocks.py").write_text(Path("blocks.py").read_text().replace("Identity", "Softplus"))
    del sys.modules["blocks"]  # as in another process
    assert "export" in anew(run())
    assert "Softplus" in {node.op_type for node in onnx.load("two/latest/model.onnx").graph.node}
    Path("samples.py").write_text(Path("samples.py").read_text().replace("rng(0)", "rng(1)"))
    assert "verify-fp16" in anew(run())


def test_a_checkpoint_alone_uses_its_own_examples_and_the_ranges_of_its_training(home):
    trained = run()
    Path("model.pt").write_bytes((Path(trained.latest) / "model.pt").read_bytes())
    Path("deploy.toml").write_text('output = "two"\n[model]\npath = "model.pt"\nrecipe = "clouds.py"\n')
    result = run()
    assert result.models[0].drift.data.samples == 4
    plan = records.load(PrecisionPlan, Path("two/latest/model.fp16.plan.json"))
    assert plan.data.name == "training of clouds.py"
    assert onnx.load("two/latest/model.onnx").graph.input[0].name == "point"


def test_what_can_never_work_is_refused_before_the_work(home):
    edit("[bundle]", '[build]\nbackend = "tensorrt"\n\n[bundle]')
    with pytest.raises(DependencyError):
        run()
    assert not Path("out").exists()
    edit('[build]\nbackend = "tensorrt"\n', "")
    edit('name = "clouds"', 'name = "clouds"\nlicences = ["none.txt"]')
    with pytest.raises(UsageError, match="licence not found"):
        run()
    assert not Path("out").exists()


def test_each_stage_tells_what_it_was_made_from(home):
    result = run()
    for stage in result.stages:
        record = records.load(StageRecord, Path(stage.folder) / "stage.json")
        assert record.name == stage.name
        assert record.inputs["mpdeploy"]
        assert record.files


def test_data_that_cannot_be_right_are_among_the_notes(home):
    trained = run()
    point = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32)
    point[3, 2] = np.nan
    np.savez("data.npz", point=point)
    Path("models").mkdir()
    Path("deploy.toml").write_text(
        f'output = "two"\n[model]\npath = "{trained.reference}"\n[verify]\ndata = "data.npz"\nbudget = "cosine>=0"\n'
    )
    assert any("NaN" in note for note in run().notes)
