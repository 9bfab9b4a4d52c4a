"""Engine and sidecar change together, whatever happens in between."""

import multiprocessing
import os
import signal
import time
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


def _slowly(model, engine, between):
    """Build, and rest between both names."""
    real = Path.replace

    def replace(self, target):
        result = real(self, target)
        if Path(target).name == "model.engine.json":
            between.set()
            time.sleep(1)
        return result

    Path.replace = replace
    build_engine(model, engine)


def test_a_build_of_another_model_to_the_same_name_waits_until_the_pair_is_whole(layer, tmp_path):
    slow, quick = (layer(kind, name=f"{kind.value}.onnx") for kind in (Format.FP16, Format.FP32))
    engine = tmp_path / "model.engine"
    fork = multiprocessing.get_context("fork")
    between = fork.Event()
    process = fork.Process(target=_slowly, args=(slow, engine, between))
    process.start()
    assert between.wait(60)
    build_engine(quick, engine)
    process.join(60)
    assert process.exitcode == 0
    assert read_engine(engine).source.files[0].name == "fp32.onnx"
    known = {"fp16.onnx", "fp32.onnx", engine.name, sidecar_of(engine).name}
    assert {path.name for path in tmp_path.iterdir()} == known
