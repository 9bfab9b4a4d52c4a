"""Ctrl-C in the middle of every long command: one line, exit code 130, nothing half-written, old outputs untouched."""

import os
import signal
import time
from pathlib import Path

import pytest

from mpdeploy.engine.loading import read_engine
from tests.slow_commands import COMMANDS, furnish, start

# Every output that a command could write, as an older run left it.
OLD = {
    "out/low.onnx": b"old model",
    "out/low.plan.json": b"old plan",
    "out/model.pt": b"old checkpoint",
    "out/report.html": b"old page",
    "out/report.json": b"old report",
    "out/low.engine": b"old engine",
    "out/low.engine.json": b"old sidecar",
    "out/outputs/0.npz": b"old outputs",
    "out/model.fp16.onnx": b"old exported model",
}


@pytest.fixture
def folder(tmp_path):
    furnish(tmp_path)
    (tmp_path / "out" / "outputs").mkdir(parents=True)
    for name, content in OLD.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def wait_until(process, ready):
    for _ in range(2400):
        if ready() or process.poll() is not None:
            return
        time.sleep(0.025)
    process.kill()


def untouched(folder):
    assert {name: (folder / name).read_bytes() for name in OLD} == OLD
    assert not [p for p in folder.rglob("*") if p.suffix in (".part", ".old")]


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_in_the_middle(folder, name):
    process = start(folder, *COMMANDS[name])
    wait_until(process, (folder / "started").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("mpdeploy: ")
    assert sum(line.startswith("mpdeploy: ") for line in err.splitlines()) == 1
    untouched(folder)


def test_ctrl_c_while_it_starts(folder):
    """Also before the first line of work, while libraries are loaded."""
    process = start(folder, *COMMANDS["convert"])
    maps = Path(f"/proc/{process.pid}/maps")
    wait_until(process, lambda: "numpy" in maps.read_text())
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err
    untouched(folder)


@pytest.mark.timeout(120)
def test_ctrl_c_in_a_build(folder):
    """The builder works outside Python for a moment only: signals come earlier and earlier until one meets it."""
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    interrupted = 0
    for delay in (0.2, 0.1, 0.03, 0.0):
        process = start(folder, "build", "net.onnx", "-o", "out/low.engine", "--shapes", "x:1x16:4x16:8x16")
        maps = Path(f"/proc/{process.pid}/maps")
        wait_until(process, lambda maps=maps: "tensorrt_rtx" in maps.read_text())
        time.sleep(delay)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        # Python itself dies of a signal that comes after it has finished.
        assert process.returncode in (0, 130, -signal.SIGINT), err
        assert "Traceback" not in err
        interrupted += process.returncode == 130
        if process.returncode == 130 and (folder / "out/low.engine").read_bytes() == OLD["out/low.engine"]:
            untouched(folder)
        else:  # it was done already, and then it is done: the new engine with the sidecar that describes it
            read_engine(folder / "out/low.engine")
            for name, content in OLD.items():
                (folder / name).write_bytes(content)
    assert interrupted
