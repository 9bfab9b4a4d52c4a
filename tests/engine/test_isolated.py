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

ROOT = Path(__file__).parents[2]

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")

# After a failed build for SM 75, TensorRT for RTX gives another plan of this for SM 120, once, in the same process.
MASKED = """<ir_version: 10, opset_import: ["" : 17]>
g (float[N,L,8] q, bool[N,L] m) => (float[N,L,8] y) <float far = {-1e9}, int64[1] one = {1}> {
    t = Transpose<perm=[0,2,1]>(q)  s = MatMul(q, t)  mask = Unsqueeze(m, one)  masked = Where(mask, far, s)
    p = Softmax<axis=-1>(masked)  y = MatMul(p, q)
}"""
SHAPES = ["q:1x1x8:2x4x8:4x16x8", "m:1x1:2x4:4x16", "q:4x16x8:4x16x8:4x16x8", "m:4x16:4x16:4x16"]
# Of this it gives two plans by turns, in one process and in several: the order of the outputs is one of addresses.
DETECTOR = """<ir_version: 10, opset_import: ["" : 18]>
g (float[2,3,16,16] x, float[4,3,3,3] wb, float[5,3,3,3] wc)
    => (float[2,10] scores, float[2,10,4] boxes, int64[2,10] classes)
    <int64[3] ba = {2,4,196}, int64[2] ca = {2,980}, int64[1] ten = {10}, int64 n = {196}, int64[1] last = {2},
    int64[3] full = {2,10,4}> {
  b = Conv(x, wb)  br = Reshape(b, ba)  bt = Transpose<perm=[0,2,1]>(br)
  c = Conv(x, wc)  cs = Sigmoid(c)  cr = Reshape(cs, ca)  scores, index = TopK(cr, ten)
  place = Mod(index, n)  pu = Unsqueeze(place, last)  pe = Expand(pu, full)
  boxes = GatherElements<axis=1>(bt, pe)  classes = Div(index, n)
}"""


def children(parent: int) -> list[int]:
    """The processes that ``parent`` has started and that are alive."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def test_a_plan_does_not_depend_on_what_was_built_before(text_model, layer, tmp_path):
    options = BuildOptions(profiles=parse_shapes(SHAPES), capabilities=(120,))
    model, found = text_model(MASKED), []

    def build():
        build_engine(model, tmp_path / "model.engine", options=options)
        found.append(sha256_of(tmp_path / "model.engine"))

    build()
    with pytest.raises(BuildError):
        build_engine(model, tmp_path / "no.engine", options=BuildOptions(profiles=options.profiles, capabilities=(75,)))
    build()
    build_engine(layer(), tmp_path / "other.engine")
    build()
    assert len(set(found)) == 1


@pytest.mark.parametrize("graph", [DETECTOR, MASKED], ids=["detector", "masked"])
def test_equal_inputs_give_equal_plans_wherever_they_are_built(text_model, tmp_path, graph):
    """Again and again, from other folders under other names, in other environments, in other processes."""
    shapes = SHAPES if graph is MASKED else []
    options = BuildOptions(profiles=parse_shapes(shapes), capabilities=(86,))
    model, found = text_model(graph), set()
    for number in range(4):
        folder = tmp_path / ("y" * (1 + 80 * number))
        folder.mkdir()
        copy = folder / f"{'n' * (1 + 70 * number)}.onnx"
        copy.write_bytes(model.read_bytes())
        build_engine(copy, folder / "model.engine", options=options)
        found.add(sha256_of(folder / "model.engine"))
        words = ["build", copy.name, "-o", "other.engine", "--sm", "86"]
        words += [word for shape in shapes for word in ("--shapes", shape)]
        environment = os.environ | {"PADDING": "x" * (777 * number), "PYTHONHASHSEED": str(number)}
        subprocess.run(
            [sys.executable, "-m", "mpdeploy", *words],
            check=True, capture_output=True, env=environment | {"PYTHONPATH": str(ROOT)}, cwd=folder,
        )  # fmt: skip
        found.add(sha256_of(folder / "other.engine"))
    assert len(found) == 1


def test_a_builder_that_dies_is_a_failed_build(layer, tmp_path):
    model, engine = layer(), tmp_path / "model.engine"
    engine.write_bytes(b"the engine before")
    others = children(os.getpid())  # processes that other parts keep

    def kill(step):
        for child in set(children(os.getpid())).difference(others):
            os.kill(child, signal.SIGSEGV)

    with pytest.raises(BuildError, match=r"the builder crashed on the model \(SIGSEGV\).*model\.onnx"):
        build_engine(model, engine, progress=kill)
    assert engine.read_bytes() == b"the engine before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.engine", "model.onnx"]


def test_a_builder_killed_for_memory_says_so(layer, tmp_path):
    others = children(os.getpid())

    def kill(step):
        for child in set(children(os.getpid())).difference(others):
            os.kill(child, signal.SIGKILL)

    with pytest.raises(BuildError, match=r"SIGKILL.*more memory"):
        build_engine(layer(), tmp_path / "model.engine", progress=kill)


def test_no_process_stays_behind(layer, tmp_path):
    before = children(os.getpid())
    build_engine(layer(), tmp_path / "model.engine")
    with pytest.raises(ZeroDivisionError):
        build_engine(layer(), tmp_path / "model.engine", progress=lambda step: 1 // 0)
    with find_backend("rtx").parse(layer()) as parsed:
        assert parsed.network.census.compute == {"fp16": 1}  # and is never built
    assert children(os.getpid()) == before


def test_the_process_goes_when_the_one_that_asked_is_killed(text_model, tmp_path):
    model = text_model(MASKED)
    words = [sys.executable, "-m", "mpdeploy", "build", str(model), "-o", str(tmp_path / "model.engine")]
    words += [word for shape in SHAPES for word in ("--shapes", shape)]
    parent = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    workers: list[int] = []
    while not workers and parent.poll() is None:
        workers = children(parent.pid)
    parent.kill()
    parent.wait()
    assert workers
    end = time.monotonic() + 60
    while (alive := [w for w in workers if _is_worker(w)]) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive


def _is_worker(process: int) -> bool:
    try:
        return b"mpdeploy.engine.worker" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


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
