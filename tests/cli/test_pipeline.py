"""`mpdeploy pipeline` as a user calls it."""

import tomllib
from pathlib import Path

import pytest

DEPLOY = """
output = "out"

[model]
path = "net.onnx"

[convert]
precision = ["bf16", "fp16"]
data = "data.npz"
"""


@pytest.fixture
def home(tmp_path, monkeypatch, net, data):
    """A folder with a model, data and `deploy.toml`; the test stands in it."""
    monkeypatch.chdir(tmp_path)
    Path("deploy.toml").write_text(DEPLOY)
    return tmp_path


def test_what_is_done_is_not_done_again(cli, home):
    first = cli("pipeline", "deploy.toml")
    assert first.code == 0, first.err
    lines = first.out.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["format", "fp32", "bf16", "fp16"]
    assert "done anew: export, convert-bf16, verify-bf16, convert-fp16, verify-fp16, report" in first.out
    assert lines[-1] == "verdict  pass: out/latest/model.bf16.onnx, out/latest/model.fp16.onnx"
    assert "unchanged" not in first.err
    again = cli("pipeline", "deploy.toml")
    assert again.out == first.out.replace(lines[-3], "stages  6, done anew: none")
    assert again.err.count("unchanged") == 6


def test_json(cli, home):
    done = cli("pipeline", "deploy.toml", "-o", "other", "--json", "-q")
    assert (done.code, done.err) == (0, "")
    assert done.document["schema"] == "mpdeploy.deployment/1"
    assert done.document["latest"] == "other/latest"
    assert done.document["stages"][0]["name"] == "export"
    assert not Path("out").exists()


def test_over_budget_is_exit_code_1(cli, home):
    Path("deploy.toml").write_text(DEPLOY + '[verify]\nbudget = "max_abs<=0"\n[bundle]\nname = "net"\n')
    done = cli("pipeline", "deploy.toml", "-q")
    assert done.code == 1
    assert done.out.splitlines()[-1].startswith("verdict  FAIL: ")
    assert Path("out/latest/report.html").is_file()
    assert not Path("out/release").exists()
    assert cli("pipeline", "deploy.toml", "-q").code == 1


def test_the_example_is_a_file_that_works(cli, home):
    done = cli("pipeline", "--example")
    assert done.code == 0
    assert tomllib.loads(done.out)["train"]["recipe"] == "models/digits_cnn.py"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 2, "no file was named"),
        (("none.toml",), 2, "deployment file not found [none.toml]"),
        (("wrong.toml",), 2, "convert.presicion: there is no such key [wrong.toml:8]; did you mean precision?"),
        (("missing.toml",), 2, "model not found [none.onnx]"),
    ],
)
def test_mistakes_are_one_line(cli, home, words, code, says):
    Path("wrong.toml").write_text(DEPLOY.replace("precision", "presicion"))
    Path("missing.toml").write_text(DEPLOY.replace("net.onnx", "none.onnx"))
    done = cli("pipeline", *words, "-q")
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert done.err.count("\n") == 1
