"""Builds in processes of their own: what dies there, what is told, what comes back."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mpdeploy.engine.backends import backend_here, find_backend
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.options import BuildOptions, parse_shapes
from mpdeploy.errors import BuildError, DependencyError, MpdeployError
from mpdeploy.files import sha256_of

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")

# After a failed build for SM 75, TensorRT for RTX gives another plan of this for SM 120, once, in the same process.
MASKED = """<ir_version: 10, opset_import: ["" : 17]>
g (float[N,L,8] q, bool[N,L] m) => (float[N,L,8] y) <float far = {-1e9}, int64[1] one = {1}> {
    t = Transpose<perm=[0,2,1]>(q)  s = MatMul(q, t)  mask = Unsqueeze(m, one)  masked = Where(mask, far, s)
    p = Softmax<axis=-1>(masked)  y = MatMul(p, q)
}"""
SHAPES = ["q:1x1x8:2x4x8:4x16x8", "m:1x1:2x4:4x16", "q:4x16x8:4x16x8:4x16x8", "m:4x16:4x16:4x16"]


def children() -> list[int]:
    """The processes that this one has started and that are alive."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def test_equal_inputs_give_equal_plans_whatever_was_built_before(text_model, layer, tmp_path):
    """Equal in this process, after builds for others, after failed ones, from another folder, in another process."""
    options = BuildOptions(profiles=parse_shapes(SHAPES), capabilities=(120,))
    model, found = text_model(MASKED), []

    def build(name, source=model):
        build_engine(source, tmp_path / name, options=options)
        found.append(sha256_of(tmp_path / name))

    build("first.engine")
    with pytest.raises(BuildError):
        build_engine(model, tmp_path / "no.engine", options=BuildOptions(profiles=options.profiles, capabilities=(75,)))
    build("second.engine")
    build_engine(layer(), tmp_path / "other.engine")
    elsewhere = tmp_path / "a folder with a much longer name" / "model.onnx"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(model.read_bytes())
    build("third.engine", elsewhere)
    words = ["build", str(model), "-o", str(tmp_path / "fourth.engine"), "--sm", "120"]
    words += [word for shape in SHAPES for word in ("--shapes", shape)]
    environment = os.environ | {"PADDING": "x" * 3000, "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-m", "mpdeploy", *words], check=True, capture_output=True, env=environment)
    found.append(sha256_of(tmp_path / "fourth.engine"))
    assert len(set(found)) == 1


def test_a_builder_that_dies_is_a_failed_build(layer, tmp_path):
    model, engine = layer(), tmp_path / "model.engine"
    engine.write_bytes(b"the engine before")

    def kill(step):
        for child in children():
            os.kill(child, signal.SIGSEGV)

    with pytest.raises(BuildError, match=r"the builder died of the model \(SIGSEGV\).*model\.onnx"):
        build_engine(model, engine, progress=kill)
    assert engine.read_bytes() == b"the engine before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.engine", "model.onnx"]


def test_a_builder_killed_for_memory_says_so(layer, tmp_path):
    def kill(step):
        for child in children():
            os.kill(child, signal.SIGKILL)

    with pytest.raises(BuildError, match=r"SIGKILL.*more memory"):
        build_engine(layer(), tmp_path / "model.engine", progress=kill)


def test_no_process_stays_behind(layer, tmp_path):
    before = children()
    build_engine(layer(), tmp_path / "model.engine")
    with pytest.raises(ZeroDivisionError):
        build_engine(layer(), tmp_path / "model.engine", progress=lambda step: 1 // 0)
    with find_backend("rtx").parse(layer()) as parsed:
        assert parsed.network.census.compute == {"fp16": 1}  # and is never built
    assert children() == before


def test_the_process_goes_when_the_one_that_asked_is_killed(text_model, tmp_path):
    model = text_model(MASKED)
    words = [sys.executable, "-m", "mpdeploy", "build", str(model), "-o", str(tmp_path / "model.engine")]
    words += [word for shape in SHAPES for word in ("--shapes", shape)]
    parent = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    workers: list[Path] = []
    while not workers and parent.poll() is None:
        workers = list(Path("/proc").glob("[0-9]*/cmdline"))
        workers = [w for w in workers if _words(w)[-1:] == [str(model)] and "mpdeploy.engine.worker" in _words(w)]
    parent.kill()
    parent.wait()
    assert workers
    end = time.monotonic() + 60
    while any(_words(worker) for worker in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(_words(worker) for worker in workers)


def _words(cmdline: Path) -> list[str]:
    try:
        return cmdline.read_text().split("\0")[:-1]
    except OSError:
        return []


def test_builds_in_threads_do_not_meet(layer, tmp_path):
    model, faults = layer(), []

    def build(number):
        try:
            build_engine(model, tmp_path / f"{number}.engine", options=BuildOptions(capabilities=(86,)))
        except BaseException as fault:  # noqa: BLE001 - raised below
            faults.append(fault)

    threads = [threading.Thread(target=build, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len({sha256_of(tmp_path / f"{number}.engine") for number in range(3)}) == 1


def test_nothing_of_the_builder_reaches_the_terminal(layer, tmp_path):
    """Some of its faults are printed past its logger."""
    words = [sys.executable, "-m", "mpdeploy", "build", str(layer()), "-o", str(tmp_path / "model.engine")]
    done = subprocess.run([*words, "--workspace", "1KiB"], capture_output=True, text=True)
    assert done.returncode == 5
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("mpdeploy: ")


def test_a_fault_there_is_the_fault_here(tmp_path):
    nothing = tmp_path / "nothing.onnx"
    with pytest.raises(MpdeployError, match=r"nothing\.onnx") as there, find_backend("rtx").parse(nothing):
        pass
    with pytest.raises(type(there.value)) as here, backend_here("rtx").parse(nothing):
        pass
    assert str(there.value) == str(here.value)


def test_a_missing_library_is_told_before_a_process_is_started(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(DependencyError):
        find_backend("rtx")
