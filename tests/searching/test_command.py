"""`mpdeploy search` as a person calls it."""

import json
from pathlib import Path

import pytest

from mpdeploy.cli.app import main

NET = """g (float[4,16] x) => (float[4,16] y) {
    [first] h = MatMul(x, w0)  [soft] s = Softmax<axis = -1>(h)  [second] y = MatMul(s, w1)
}"""


@pytest.fixture
def folder(tmp_path, monkeypatch, model, data):
    """A folder with net.onnx and its data; the test stands in it."""
    model(NET)
    monkeypatch.chdir(tmp_path)


def called(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(["search", "net.onnx", "-o", "out.onnx", "--precision", "bf16", "--data", "data", *words])
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
