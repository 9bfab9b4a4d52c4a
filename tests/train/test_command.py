"""`mpdeploy train`: contract, exit codes, what is printed where."""

import json
import re
import subprocess
import sys

import pytest
import torch

from mpdeploy.amp import StepResult
from mpdeploy.amp.result import LossOutcome
from mpdeploy.cli import main
from mpdeploy.cli.training import Pace
from mpdeploy.train.loop import Step


def call(capsys, *words) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    out, err = capsys.readouterr()
    return caught.value.code, out, err


def test_a_users_recipe_trains_into_runs_by_default(mlp, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, "train", mlp, "--epochs", 1)
    assert code == 0
    assert out.startswith("runs/my_mlp/model.pt: accuracy 0.")
    assert out.endswith(f"next: mpdeploy export runs/my_mlp/model.pt --recipe {mlp}\n")
    assert "training my_mlp in bf16-mixed: 15 steps\n" in err
    assert {p.name for p in (tmp_path / "runs" / "my_mlp").iterdir()} == {
        "model.pt", "best.pt", "states", "heldout", "calibration", "telemetry.jsonl", "training.json"
    }  # fmt: skip
    assert torch.load("runs/my_mlp/model.pt", weights_only=True)["weights"]["0.weight"].dtype == torch.float32


def test_a_recipe_in_models_need_not_be_pointed_at(mlp, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    mlp.rename(tmp_path / "models" / "my_mlp.py")
    _, out, _ = call(capsys, "train", "models/my_mlp.py", "--epochs", 1)
    assert out.endswith("next: mpdeploy export runs/my_mlp/model.pt\n")


def test_json_is_one_document_and_quiet_is_quiet(mlp, tmp_path, capsys):
    code, out, err = call(
        capsys,
        "train",
        mlp,
        "--json",
        "-q",
        "--precision",
        "fp16-master",
        "--seed",
        3,
        "--epochs",
        1,
        "-o",
        tmp_path / "o",
    )
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["record"]["level"] == "fp16-master"
    assert document["record"]["seed"] == 3
    assert document["record"]["recipe"]["file"] == "my_mlp.py"
    assert document["record"]["inputs"] == [{"name": "pixels", "dtype": "float32", "shape": ["batch", 64]}]
    assert document["checkpoint"] == str(tmp_path / "o" / "model.pt")


def test_resume_goes_on_and_finds_nothing_left(mlp, tmp_path, capsys):
    words = ("train", mlp, "--epochs", 1, "-o", tmp_path / "o")
    assert call(capsys, *words)[0] == 0
    before = (tmp_path / "o" / "model.pt").read_bytes()
    code, _, err = call(capsys, *words, "--resume")
    assert code == 0
    assert "all 15 steps are done" in err
    assert (tmp_path / "o" / "model.pt").read_bytes() == before


def test_bad_input_is_exit_2_and_one_line(mlp, tmp_path, capsys):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, not a folder")
    for words, says in [
        (("train", tmp_path / "none.py"), "recipe not found"),
        (("train", mlp, "--precision", "fp8"), "fp8"),
        (("train", mlp, "-o", blocked), "cannot write the output"),
        (("train", mlp, "-o", tmp_path / "o", "--resume"), "no interrupted training"),
        (("train", mlp, "--epochs", "0"), "epochs"),
        (("train",), "RECIPE"),
    ]:
        code, out, err = call(capsys, *words, "-q")
        assert (code, out) == (2, ""), words
        assert says in err
        assert err.count("\n") == 1
    assert blocked.read_text() == "a file, not a folder"


def test_help_does_not_wait_for_torch():
    code = (
        "import sys\nfrom mpdeploy.cli import main\n"
        "try:\n    main(['train', '--help'])\nexcept SystemExit as e:\n    sys.exit(e.code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "bf16-master" in done.stdout


def test_progress_tells_loss_pace_scale_skips_and_what_is_left():
    result = StepResult(None, (LossOutcome("loss", 1024.0, 2048.0, True),), 1.0)
    pace = Pace(4)
    shares, words = zip(*(pace.after(Step(0, i, 0.5, result), skipped=1) for i in range(4)), strict=True)
    assert shares == (0.25, 0.5, 0.75, 1.0)
    assert re.fullmatch(r"loss 0\.5, \S+ steps/s, scale 2048, 1 skipped, 0:00:00 left", words[-1])


def test_the_risk_of_a_level_is_told_and_aliases_are_taken(mlp, tmp_path, capsys):
    mlp.write_text(mlp.read_text().replace("lr=5e-3", "lr=5e-3, eps=1e-4"))
    code, out, err = call(capsys, "train", mlp, "--precision", "O3", "--epochs", 1, "-o", tmp_path / "o")
    assert code == 0
    assert "warning: weights in fp16 without FP32 masters lose every update" in err
    assert "fp16-true: compute fp16, weights fp16, momentum fp32, loss scale dynamic from 65536" in err
    assert ", fp16-true, 15 steps applied" in out or "skipped" in out


def test_training_that_diverges_is_exit_3_and_names_the_culprit(mlp, tmp_path, capsys):
    mlp.write_text(mlp.read_text().replace("nn.ReLU()", "nn.ReLU(), nn.Threshold(9e9, float('nan'))"))
    code, out, err = call(capsys, "train", mlp, "--precision", "bf16-mixed", "--epochs", 2, "-o", tmp_path / "o")
    assert (code, out) == (3, "")
    assert "20 steps in a row were skipped: first not finite is the output of `3` (Threshold)" in err
