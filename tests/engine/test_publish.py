"""Engine and sidecar change together, whatever happens in between."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from mpdeploy.engine.building import build_engine
from mpdeploy.engine.loading import read_engine
from mpdeploy.engine.options import BuildOptions
from mpdeploy.engine.record import sidecar_of
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")

OTHER = BuildOptions(capabilities=(86,))


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def failing_at(monkeypatch, name, fault):
    """Make the renaming to a file of this name fail."""
    real = Path.replace

    def replace(self, target):
        if Path(target).name == name:
            monkeypatch.setattr(Path, "replace", real)  # the way back is open again
            raise fault
        return real(self, target)

    monkeypatch.setattr(Path, "replace", replace)


@pytest.mark.parametrize("name", ["model.engine", "model.engine.json"])
@pytest.mark.parametrize(("fault", "raised"), [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(1, ""), UsageError)])
def test_a_fault_between_both_names_leaves_the_pair_that_was_there(layer, tmp_path, monkeypatch, name, fault, raised):
    model, engine = layer(), tmp_path / "model.engine"
    for older in (False, True):
        if older:
            build_engine(model, engine)
        before = snapshot(tmp_path)
        failing_at(monkeypatch, name, fault)
        with pytest.raises(raised):
            build_engine(model, engine, options=OTHER)
        assert snapshot(tmp_path) == before
    assert read_engine(engine).capabilities == (80, 86, 89, 120, 121)


def _killed(model, engine, at):
    real = Path.replace

    def replace(self, target):
        result = real(self, target)
        if Path(target).name == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    Path.replace = replace
    build_engine(model, engine, options=OTHER)


@pytest.mark.parametrize(("at", "loadable"), [("model.engine.json", False), ("model.engine", True)])
def test_after_a_kill_no_engine_stands_beside_another_ones_sidecar(layer, tmp_path, at, loadable):
    model, engine = layer(), tmp_path / "model.engine"
    build_engine(model, engine)
    process = multiprocessing.get_context("fork").Process(target=_killed, args=(model, engine, at))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    if loadable:
        assert read_engine(engine).capabilities == (86,)
    else:
        with pytest.raises(UsageError, match=r"not the file that its sidecar describes|cut off"):
            read_engine(engine)
    build_engine(model, engine)  # and the next build mends it
    read_engine(engine)


def _build_often(model, engine, start):
    start.wait()
    for _ in range(3):
        build_engine(model, engine)


def test_two_builds_of_two_models_to_one_name_leave_a_pair(layer, tmp_path):
    models = [layer(kind, name=f"{kind.value}.onnx") for kind in (Format.FP16, Format.FP32)]
    engine = tmp_path / "model.engine"
    fork = multiprocessing.get_context("fork")
    start = fork.Barrier(2)
    processes = [fork.Process(target=_build_often, args=(model, engine, start)) for model in models]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    read_engine(engine)
    known = {"fp16.onnx", "fp32.onnx", engine.name, sidecar_of(engine).name}
    assert {path.name for path in tmp_path.iterdir()} == known
