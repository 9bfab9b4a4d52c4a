"""`mpdeploy search` as a person calls it."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from mpdeploy.cli.app import main

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[8,16] x) => (float[8,4] y) {
    [first] h = MatMul(x, w0)  [soft] s = Softmax<axis = -1>(h)  [second] y = MatMul(s, w1)
}"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    model = onnx.parser.parse_model(NET)
    for name, shape in (("w0", (16, 32)), ("w1", (32, 4))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    Path("net.onnx").write_bytes(model.SerializeToString())
    np.savez("data.npz", x=rng.standard_normal((8, 16)).astype(np.float32))
    return tmp_path


def called(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(["search", "net.onnx", "-o", "out.onnx", "--precision", "bf16", "--data", "data.npz", *words])
    out, err = capsys.readouterr()
    return end.value.code, out, err


def test_it_says_what_the_rules_gave_and_what_was_found(folder, capsys):
    code, out, err = called(capsys, "--policy", "autocast")
    assert code == 0
    assert "lowered against a rule: soft" in out
    assert out.splitlines()[-1].startswith("PASSED ")
    assert "more lowered (Softmax)" in err
    assert Path("out.onnx").is_file()
    assert Path("out.plan.json").is_file()


def test_json_is_the_record_alone(folder, capsys):
    code, out, _ = called(capsys, "--json", "--policy", "autocast")
    document = json.loads(out)
    assert (code, document["schema"]) == (0, "mpdeploy.search/1")
    assert (document["verdict"]["passed"], document["freed"]) == (True, ["soft"])


def test_no_plan_within_budget_is_exit_1_and_one_line(folder, capsys):
    code, out, err = called(capsys, "--budget", "norm_relative<=1e-12", "--quiet")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "no plan with bf16 in it is within the budget" in err
    assert not Path("out.onnx").exists()


def test_the_budget_may_stand_in_the_projects_settings(folder, capsys):
    Path("mpdeploy.toml").write_text('[verify]\nbudget = "norm_relative<=1e-12"\n')
    assert called(capsys)[0] == 1


def test_a_report_of_what_was_found(folder, capsys):
    code, _, err = called(capsys, "--report", "report")
    assert code == 0
    assert "report: " in err
    assert json.loads(Path("report/report.json").read_text())["drifts"][0]["verdict"]["passed"]
