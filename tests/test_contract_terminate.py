"""SIGTERM in the middle of a command: as Ctrl-C, but exit code 143; what a kill leaves is gone with the next run."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.slow_commands import COMMANDS, furnish, start

PIPELINES = {"pipeline": ("pipeline", "deploy.toml"), "pipeline that trains": ("pipeline", "train.toml")}
DEPLOY = 'output = "out"\n[model]\npath = "net.onnx"\n[convert]\ndata = "feeds.py:slowly"\n'
TRAIN = 'output = "out"\n[train]\nrecipe = "recipe.py"\n'


@pytest.fixture
def folder(tmp_path):
    furnish(tmp_path)
    for name, text in (("deploy.toml", DEPLOY), ("train.toml", TRAIN)):
        (tmp_path / name).write_text(text)
    return tmp_path


def stopped(folder: Path, words: tuple[str, ...], number: int) -> tuple[int, str, str]:
    """Start a command, send it a signal once it is at work, and return how it ended."""
    process = start(folder, *words)
    while not (folder / "started").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def strays(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in (".part", ".old", ".gone")]


@pytest.mark.parametrize("name", COMMANDS | PIPELINES)
def test_terminated_in_the_middle(folder, name):
    code, out, err = stopped(folder, (COMMANDS | PIPELINES)[name], signal.SIGTERM)
    assert (code, out) == (143, ""), err
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("mpdeploy: terminated; ")
    if name == "pipeline that trains":  # what it trained is kept, and that is what is said
        assert [str(path.relative_to(folder)) for path in strays(folder)] == [
            last.split(" is kept in ")[1].split(",")[0]
        ]
    else:
        assert strays(folder) == []
        assert last.endswith("nothing half-written was left")


KILLED = {
    "convert": (COMMANDS["convert"], ("convert", "net.onnx", "-o", "out/low.onnx", "--precision", "fp16")),
    "export": (COMMANDS["export"], ("export", "net.onnx", "--data", "feeds.py:quickly", "-o", "out")),
    "run": (COMMANDS["run"], ("run", "net.onnx", "--data", "feeds.py:quickly", "-o", "out/outputs")),
}  # fmt: skip


@pytest.mark.parametrize("name", KILLED)
def test_killed_in_the_middle_and_run_again(folder, name):
    killed, again = KILLED[name]
    assert stopped(folder, killed, signal.SIGKILL)[0] == -signal.SIGKILL
    done = subprocess.run(
        [sys.executable, "-m", "mpdeploy", *again], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert strays(folder) == []
