"""Models that never end: stopped after `--timeout` seconds, and by a signal at any time."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import torch
from onnx import helper

import mpdeploy
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.graph import io
from mpdeploy.graph.patience import limit_of, limited
from mpdeploy.runtime.attended import Attendant, any_given_up
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.source.silence import silence

BODY = "b (int64 i, bool c, float[4] s) => (bool d, float[4] t) { d = Identity(c) t = Add(s, s) }"
LIMIT = ("--timeout", "0.5")


def write_loop(path, trips):
    """A model that doubles its input so often."""
    count = helper.make_node("Constant", [], ["n"], value=helper.make_tensor("n", 7, [], [trips]))
    loop = helper.make_node("Loop", ["n", "", "x"], ["z"], name="loop", body=onnx.parser.parse_graph(BODY))
    nodes = [count, loop, helper.make_node("Relu", ["z"], ["y"])]
    graph = helper.make_graph(nodes, "g", *([helper.make_tensor_value_info(n, 1, [4])] for n in "xy"))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture
def endless(tmp_path, monkeypatch):
    """The test stands in a folder with a model that never ends, one that does, and data for both."""
    monkeypatch.chdir(tmp_path)
    write_loop(tmp_path / "short.onnx", 3)
    np.savez(tmp_path / "d.npz", x=np.ones(4, np.float32))
    return write_loop(tmp_path / "endless.onnx", 2**62)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "endless.onnx", "--data", "d.npz"),
        ("run", "endless.onnx", "--data", "d.npz", "--runtime", "emulator"),
        ("verify", "endless.onnx", "endless.onnx", "--data", "d.npz"),
        ("verify", "short.onnx", "endless.onnx", "--data", "d.npz", "--emulate", "half"),
        ("convert", "endless.onnx", "-o", "out.onnx", "--precision", "fp16", "--data", "d.npz"),
        ("search", "endless.onnx", "-o", "out.onnx", "--precision", "bf16", "--data", "d.npz"),
        ("export", "endless.onnx", "-o", "out", "--data", "d.npz"),
        ("bench", "endless.onnx", "--data", "d.npz"),
    ],
)
def test_a_command_stops_a_model_that_never_ends(endless, cli, words):
    done = cli(*words, *LIMIT)
    assert done.code == 3, done.err
    line = done.err.splitlines()[-1]
    assert "one run took more than 0.5 seconds" in line
    assert ".onnx]; give it more with --timeout" in line
    assert not list(endless.parent.glob("out*"))


def test_python_takes_the_same_word(endless):
    x = np.ones(4, np.float32)
    for call in (
        lambda: mpdeploy.load(endless, timeout=0.5)(x),
        lambda: mpdeploy.convert(endless, "out.onnx", precision="fp16", data={"x": x}, timeout=0.5),
        lambda: mpdeploy.verify("short.onnx", endless, {"x": x}, timeout=0.5),
        lambda: mpdeploy.search(endless, "out.onnx", precision="fp16", data={"x": x}, timeout=0.5),
        lambda: mpdeploy.export(endless, "out", data={"x": x}, timeout=0.5),
    ):
        with pytest.raises(ModelError, match=r"more than 0\.5 seconds"):
            call()


def test_a_limit_that_is_not_reached_changes_nothing(endless, cli):
    done = cli("run", "short.onnx", "--data", "d.npz", "-o", "y.npz", "--timeout", "300")
    assert done.code == 0
    assert np.load("y.npz")["y"].tolist() == [8.0] * 4


@pytest.mark.parametrize("word", ["0", "-1", "nan", "inf"])
def test_what_is_no_limit_is_refused(endless, cli, word):
    done = cli("run", "short.onnx", "--data", "d.npz", "--timeout", word)
    assert done.code == 2
    assert "no time limit [--timeout]" in done.err


def test_a_pipeline_has_the_limit_in_its_file(endless, cli):
    (endless.parent / "deploy.toml").write_text(
        'output = "out"\n[model]\npath = "endless.onnx"\n[convert]\ndata = "d.npz"\ntimeout = 0.5\n'
    )
    done = cli("pipeline", "deploy.toml")
    assert done.code == 3
    assert "more than 0.5 seconds" in done.err


def test_a_torch_module_is_given_up(tmp_path, cli):
    class Endless(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x
            while bool((y == y).all()):
                y = y * 0.5
            return y

    with silence():
        torch.jit.script(Endless()).save(str(tmp_path / "m.pt"))
    np.savez(tmp_path / "d.npz", x=np.ones(4, np.float32))
    words = ("run", tmp_path / "m.pt", "--data", tmp_path / "d.npz", "--input", "x:4", *LIMIT)
    process = subprocess.run(
        [sys.executable, "-m", "mpdeploy", *map(str, words)], capture_output=True, text=True, check=False, timeout=120
    )
    assert process.returncode == 3, process.stderr
    assert "more than 0.5 seconds" in process.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_that_never_ends(endless, number, code):
    (endless.parent / "feeds.py").write_text(
        "import pathlib\nimport numpy as np\n\n\ndef feeds():\n"
        "    yield {'x': np.ones(4, np.float32)}\n    pathlib.Path('never').touch()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "mpdeploy", "run", "endless.onnx", "--data", "feeds.py:feeds", "-o", "out"],
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 60
    while not list(endless.parent.glob(".mpdeploy-*")) and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.5)  # into the run
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "nothing half-written was left" in err
    assert sorted(path.name for path in endless.parent.iterdir() if path.name.startswith(("out", ".mp"))) == []


def test_a_limit_goes_on_to_what_is_made_of_a_model(endless):
    from mpdeploy.runtime.probes import exposed
    from mpdeploy.runtime.segments import segments
    from mpdeploy.runtime.twin import runnable

    model = limited(io.load(endless), 7)
    piece = next(segments(model, ["y"], 1 << 20, lambda value: 1)).model
    assert [limit_of(m) for m in (model, runnable(model), exposed(model, ["t"])[0], piece)] == [7] * 4


def test_a_runner_goes_on_after_a_run_was_stopped(endless):
    feed = {"x": np.ones(4, np.float32)}
    runner = OrtRunner(limited(io.load(Path("short.onnx")), 60), "m")
    assert runner.run(feed)["y"].tolist() == [8.0] * 4
    attendant = Attendant("m", 0.2)
    ended = threading.Event()
    with pytest.raises(ModelError):
        attendant.call(ended.wait, ended.set)
    assert attendant.call(lambda: 5, ended.set) == 5
    with pytest.raises(ZeroDivisionError):
        attendant.call(lambda: 1 // 0, ended.set)
    with pytest.raises(UsageError):
        Attendant("m", 0.0)


def test_the_thread_of_an_attendant_ends_with_it():
    before = threading.active_count()
    attendant = Attendant("m", None)
    assert attendant.call(lambda: 1, lambda: None) == 1
    del attendant
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_second_signal_leaves_no_answer_behind_for_the_next_call():
    attendant, held = Attendant("m", None), threading.Event()
    signals = iter([KeyboardInterrupt, KeyboardInterrupt])

    def interrupt(*_):
        raise next(signals, TimeoutError)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            attendant.call(lambda: held.wait(30) and "old", lambda: None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert next(signals, None) is None  # the second came while the first was heeded
    held.set()
    assert attendant.call(lambda: "new", lambda: None) == "new"
    until = time.monotonic() + 10
    while any_given_up() and time.monotonic() < until:
        time.sleep(0.01)
    assert not any_given_up()  # a call that ended after all left its thread


def test_any_number_of_seconds_is_waited_for():
    assert Attendant("m", 1e300).call(lambda: 7, lambda: None) == 7


def test_the_limit_is_of_a_run_and_not_of_loading(tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import time\nfrom torch import nn\n\n\ndef build():\n    time.sleep(3)\n    return nn.Linear(4, 2)\n"
    )
    torch.save(torch.nn.Linear(4, 2).state_dict(), "w.pth")
    np.savez("d.npz", input=np.ones((1, 4), np.float32))
    done = cli("run", "w.pth", "--model", "net.py:build", "--data", "d.npz", "--timeout", "2")
    assert done.code == 0, done.err


def test_a_benchmark_of_what_nothing_can_stop_ends_in_silence(tmp_path):
    class Endless(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x
            while bool((y == y).all()):
                y = y * 0.5
            return y

    with silence():
        torch.jit.script(Endless()).save(str(tmp_path / "m.pt"))
    words = ("bench", tmp_path / "m.pt", "--input", "x:4", *LIMIT)
    process = subprocess.run(
        [sys.executable, "-m", "mpdeploy", *map(str, words)], capture_output=True, text=True, check=False, timeout=120
    )
    assert process.returncode == 3, process.stderr
    assert "terminate called" not in process.stderr
