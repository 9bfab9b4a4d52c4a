"""What comes from files steers no terminal, forges no line, and spoils no JSON document; nor do others' prints."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import mpdeploy.cli
from mpdeploy.cli import console
from mpdeploy.texts import json_escaped, one_line

# A cleared line, a forged one, a BiDi override, a C1 control, a line separator, rich's markup, an emoji code.
EVIL = "x\x1b[2K\nPASSED\r\u202egpj\x9b2J\u2028[bold red]:smile:"
SHOWN = r"x\x1b[2K\nPASSED\r\u202egpj\x9b2J\u2028[bold red]:smile:"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model all of whose names are evil, data for it."""
    monkeypatch.chdir(tmp_path)
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32), f"w{EVIL}")
    x, y = (helper.make_tensor_value_info(f"{n}{EVIL}", 1, ["N", 4]) for n in "xy")
    node = helper.make_node("MatMul", [x.name, weight.name], [y.name], name=f"node{EVIL}")
    graph = helper.make_graph([node], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
    with (tmp_path / "data.npz").open("wb") as stream:
        np.savez(stream, **{x.name: np.ones((3, 4), np.float32)})
    return tmp_path


CONVERT = ("convert", "net.onnx", "-o", "low.onnx", "--precision", "fp16")
COMMANDS = {
    "convert": CONVERT,
    "inspect": ("inspect", "net.onnx"),
    "inspect a plan": ("inspect", "low.onnx"),
    "inspect a node": ("inspect", "low.onnx", "--node", "*"),
    "run": ("run", "net.onnx", "--data", "data.npz"),
    "verify": ("verify", "net.onnx", "low.onnx", "--data", "data.npz", "--layers", "--budget", "cosine>=0.5"),
    "verify, over budget": ("verify", "net.onnx", "low.onnx", "--data", "data.npz", "--budget", "max_abs<=1e-9"),
    "no such node": ("inspect", "low.onnx", "--node", EVIL.replace("\x00", "")),
    "no such file": ("inspect", EVIL),
}


def harmless(text):
    return all(sign.isprintable() or sign == "\n" for sign in text) and "\nPASSED\r" not in text


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_names_from_files_are_escaped(cli, folder, name, form):
    assert cli(*CONVERT, "-q").code == 0
    done = cli(*COMMANDS[name], *form)
    assert done.code in (0, 1, 2), done.err
    assert harmless(done.out), done.out
    assert harmless(done.err), done.err
    assert "smile" in done.out + done.err or name in ("convert",)
    if form:
        json.loads(done.out)
    else:
        assert r"\x1b[2K" in done.out + done.err or name in ("convert",)


def test_markdown_and_junit_are_what_they_seem(cli, folder):
    cli(*CONVERT, "-q")
    words = ("verify", "net.onnx", "low.onnx", "--data", "data.npz", "--budget", "max_abs<=1e-9")
    assert cli(*words, "--markdown", "m.md", "--junit", "j.xml").code == 1
    text = Path("m.md").read_text()
    assert harmless(text)
    assert "\nPASSED" not in text


def test_a_manifest_cannot_forge_a_line(cli, folder):
    manifest = {
        "name": "n", "version": "1", "created": "now", "tool": "t", "files": [], "training": None, "models": [],
        "engines": [], "passed": False, "reasons": ["it failed\n  may be promoted"],
        "notes": ["x\x1b[2K\n  may be promoted"], "schema": "mpdeploy.manifest/1",
    }  # fmt: skip
    Path("manifest.json").write_text(json.dumps(manifest))
    done = cli("inspect", "manifest.json")
    assert done.code == 0
    assert "  may be promoted" not in done.out.splitlines()
    assert r"x\x1b[2K\n  may be promoted" in done.out


@given(st.text())
def test_one_line_is_printable_and_keeps_what_was_so(text):
    assert one_line(text).isprintable()
    assert one_line(one_line(text)) == one_line(text)
    assert not text.isprintable() or one_line(text) == text


@given(st.recursive(st.text() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_an_escaped_document_says_the_same(value):
    text = json_escaped(json.dumps(value, ensure_ascii=False, indent=1))
    assert harmless(text.replace("\nPASSED\r", ""))
    assert json.loads(text) == value


NOISY = """
import os, subprocess, sys
import numpy as np
print("at import")
def feeds():
    print("a print")
    os.write(1, b"below Python\\n")
    subprocess.run([sys.executable, "-c", "print('another process')"], check=True)
    yield {"x": np.ones((2, 4), np.float32)}
"""


def test_what_others_print_is_no_result(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, 1, ["N", 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
    Path("noisy.py").write_text(NOISY)
    done = cli("run", "net.onnx", "--data", "noisy.py:feeds", "--json")
    assert done.code == 0, done.err
    assert done.document["feeds"] == 1
    for words in ("at import", "a print", "below Python", "another process"):
        assert words in done.err


def test_only_the_writer_prints():
    folder = Path(mpdeploy.cli.__file__).parent
    for file in folder.glob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)}
        assert "print" not in names or file.name == "console.py", f"{file.name} prints: use cli/console.py"
    assert "print" in Path(console.__file__).read_text()


# --- standard output and error that take nothing


def program(folder, *words, **streams):
    command = [sys.executable, "-m", "mpdeploy", *words]
    return subprocess.run(command, cwd=folder, stderr=subprocess.PIPE, text=True, check=False, **streams)


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("words", [CONVERT, ("--help",), ("inspect", "net.onnx"), ("inspect", "none")])
def test_a_full_standard_output_is_told(folder, words, form):
    if words == ("--help",) and form:
        words = ("convert", "--help")
    with Path("/dev/full").open("w") as full:
        done = program(folder, *words, *form, stdout=full)
    assert done.returncode == 2, done.stderr
    assert "No space left on device" in done.stderr or words == ("inspect", "none")
    assert done.stderr.count("\n") == 1, done.stderr
    if words == CONVERT:
        assert (folder / "low.onnx").exists()


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_closed_streams_change_nothing(folder, closed):
    command = f"{sys.executable} -m mpdeploy {' '.join(CONVERT)} --json {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=folder, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    onnx.checker.check_model(str(folder / "low.onnx"))
    json.loads((folder / "low.plan.json").read_bytes())


def test_the_descriptors_of_the_caller_are_as_before(cli, folder):
    before = [os.fstat(number).st_ino for number in (1, 2)]
    cli("inspect", "net.onnx")
    assert [os.fstat(number).st_ino for number in (1, 2)] == before
