"""`mpdeploy verify` as a user calls it: exit codes, streams, files."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from mpdeploy import records
from mpdeploy.cli.app import main
from mpdeploy.report.record import Report


def spawn(*words):
    return subprocess.run(
        [sys.executable, "-m", "mpdeploy", *map(str, words)], capture_output=True, text=True, timeout=60
    )


@dataclasses.dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(capfdbinary, monkeypatch, tmp_path):
    """Return a function that calls the command in this process, which spares the start of an interpreter."""

    def run(*words, cwd=tmp_path):
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["mpdeploy", *map(str, words)])
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capfdbinary.readouterr()
        return Done(stopped.value.code, out.decode(), err.decode())

    return run


@pytest.fixture
def case(mlp, samples, tmp_path):
    np.savez(tmp_path / "data.npz", **samples)
    return [mlp("ref"), mlp("cand", "fp16"), "--data", tmp_path / "data.npz"]


def test_a_good_candidate_exits_with_0(case):
    done = spawn("verify", *case)
    assert done.returncode == 0, done.stderr
    assert "PASSED" in done.stdout
    assert "cosine" in done.stdout


def test_a_bad_candidate_exits_with_1_and_says_why(call, case, mlp):
    case[1] = mlp("bad", "fp16", lambda w: w * np.float32(0.5))
    done = call("verify", *case)
    assert done.returncode == 1
    assert "FAILED" in done.stdout
    assert "V201" in done.stdout
    assert "Traceback" not in done.stderr


def test_json_is_one_document_on_standard_output(call, case):
    done = call("verify", *case, "--json")
    document = json.loads(done.stdout)
    assert document["schema"] == "mpdeploy.drift/1"
    assert document["verdict"]["passed"] is True
    assert document["candidate_run"]["evidence"] is True


def test_the_report_folder(call, case, tmp_path):
    done = call("verify", *case, "--budget", "logits:cosine>=0.9", "--report", tmp_path / "out" / "r")
    assert done.returncode == 0, done.stderr
    report = records.load(Report, tmp_path / "out" / "r" / "report.json")
    assert report.passed
    assert "'logits:cosine>=0.9'" in report.commands[0]
    assert (tmp_path / "out" / "r" / "report.html").stat().st_size > 5000
    assert sorted(p.name for p in (tmp_path / "out" / "r").iterdir()) == ["report.html", "report.json"]


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({0: "missing.onnx"}, 2, "not found"),
        ({1: "broken.onnx"}, 2, "not an ONNX model"),
        ({3: "missing.npz"}, 2, "not found"),
        ({3: "names.npz"}, 2, "lacks input 'x', it holds y"),
        ({3: "shape.npz"}, 2, "dimension 1 of input 'x' is 3"),
        ({3: "kind.npz"}, 2, "without loss"),
        ({4: "--budget", 5: "beauty>=1"}, 2, "unknown metric"),
        ({4: "--wrong"}, 2, "wrong"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(call, case, tmp_path, change, code, says):
    (tmp_path / "broken.onnx").write_bytes(b"this is no model")
    np.savez(tmp_path / "names.npz", y=np.zeros((1, 16), np.float32))
    np.savez(tmp_path / "shape.npz", x=np.zeros((1, 3), np.float32))
    np.savez(tmp_path / "kind.npz", x=np.zeros((1, 16), np.complex64))
    words = [change.get(i, case[i] if i < 4 else None) for i in range(6)]
    done = call("verify", *(w for w in words if w is not None), cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_an_unwritable_report_folder_leaves_nothing(call, case, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = call("verify", *case, "--report", tmp_path / "file")
    assert done.returncode == 2
    assert "cannot write the output" in done.stderr
    assert (tmp_path / "file").read_text() == "in the way"


def test_ctrl_c_leaves_an_old_report_as_it_was(case, tmp_path):
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "report.json").write_text("old")
    data = tmp_path / "slow.py"
    data.write_text(
        "import time, pathlib\nimport numpy as np\ndef feeds():\n"
        "    for i in range(1000):\n"
        f"        pathlib.Path({str(tmp_path / 'started')!r}).touch()\n"
        "        yield {'x': np.zeros((1, 16), np.float32)}\n        time.sleep(0.05)\n"
    )
    words = ["verify", *map(str, case[:2]), "--data", f"{data}:feeds", "--report", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-m", "mpdeploy", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for _ in range(400):
        if (tmp_path / "started").exists():
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert {p.name: p.read_text() for p in folder.iterdir()} == {"report.json": "old"}


def test_layers_junit_and_markdown(call, case_a4, all_low, spread, tmp_path):
    for i, feed in enumerate(spread):
        np.savez(tmp_path / f"{i}.npz", **feed)
    outputs = ["--junit", "ci/j.xml", "--markdown", "m.md", "--report", "r"]
    done = call("verify", case_a4, all_low(case_a4), "--data", tmp_path, "--layers", *outputs, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    for text in ("overflows", "pow", "--keep-fp32 pow", "brings it within budget"):
        assert text in done.stdout, text
    assert 'type="V101"' in (tmp_path / "ci/j.xml").read_text()
    assert "--keep-fp32 pow" in (tmp_path / "m.md").read_text()
    html = (tmp_path / "r/report.html").read_text()
    assert "Along the network" in html
    assert "What stays in FP32" in html


def test_onnx_runtimes_cpu_run_is_refused_as_evidence_unless_forced(call, case):
    refused = call("verify", *case, "--runtime", "onnxruntime", "--no-noise")
    assert refused.returncode == 1
    assert "V301" in refused.stdout
    forced = call("verify", *case, "--runtime", "onnxruntime", "--no-noise", "--force", "--json")
    assert forced.returncode == 0, forced.stderr
    verdict = json.loads(forced.stdout)["verdict"]
    assert (verdict["passed"], verdict["forced"]) == (True, True)


def test_settings_of_the_folder_count_and_flags_go_before_them(call, case, tmp_path):
    (tmp_path / "mpdeploy.toml").write_text('[verify]\nbudget = "max_abs<=1e-12"\nmetrics = ["m.py:half"]\n')
    (tmp_path / "m.py").write_text("def half(reference, candidate, feed):\n    return 0.5\n")
    unnamed = call("verify", *case, "--no-noise", "--json", cwd=tmp_path)
    assert unnamed.returncode == 2, "the folder brought code along, and it ran"
    assert "--settings mpdeploy.toml" in unnamed.stderr
    strict = call("verify", *case, "--no-noise", "--json", "--settings", "mpdeploy.toml", cwd=tmp_path)
    assert strict.returncode == 1
    document = json.loads(strict.stdout)
    assert document["budget"]["origin"] == "from mpdeploy.toml"
    assert document["scores"][0]["name"] == "half"
    loosely = ("--budget", "cosine>=0.9,score.half>=0.4", "--metric", "m.py:half")
    loose = call("verify", *case, "--no-noise", *loosely, cwd=tmp_path)
    assert loose.returncode == 0, loose.stderr


@pytest.mark.parametrize("mode", ["half", "tf32"])
def test_other_arithmetic_is_said_in_the_record(call, case, mode):
    if mode == "tf32":
        case[1] = case[0]
    document = json.loads(call("verify", *case, "--emulate", mode, "--no-noise", "--json").stdout)
    assert {"half": "after every 16 terms", "tf32": "rounded to tf32"}[mode] in document["candidate_run"]["precision"]
    assert 0 < document["outputs"][0]["norm_relative"] < 0.01


def test_a_baseline_on_the_command_line(call, case, mlp, tmp_path):
    assert call("verify", *case, "--no-noise", "--report", tmp_path / "last").returncode == 0
    case[1] = mlp("worse", "fp16", lambda w: w * np.float32(1.01))
    done = call("verify", *case, "--no-noise", "--baseline", tmp_path / "last" / "report.json")
    assert done.returncode == 1
    assert "V401" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--task", "pose:x"], 2, "unknown task"),
        (["--metric", "none.py:f"], 2, "metric module not found"),
        (["--baseline", "none.json"], 2, "baseline not found"),
        (["--runtime", "magic"], 2, "magic"),
        (["--runtime", "onnxruntime", "--emulate", "half"], 2, "--emulate is for the emulator"),
        (["--runtime", "tensorrt"], 2, "does not run an ONNX model"),
    ],
)
def test_wrong_flags_are_one_line(call, case, words, code, says, tmp_path):
    done = call("verify", *case, *words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
