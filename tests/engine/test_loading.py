"""Engines are checked against their sidecar before any byte of them is loaded: case T7, T8."""

import dataclasses
import json

import pytest

from mpdeploy import records
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.gpu import Gpu, find_gpus
from mpdeploy.engine.loading import check_fit, read_engine, this_system
from mpdeploy.engine.options import BuildOptions, Feature
from mpdeploy.engine.record import EngineRecord, sidecar_of
from mpdeploy.engine.runner import EngineRunner
from mpdeploy.engine.toolkit import Flavour, Toolkit
from mpdeploy.errors import DependencyError, UsageError

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")

A10 = Gpu("NVIDIA A10", 86, 24 << 30)
H200 = Gpu("NVIDIA H200", 90, 139 << 30)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """One engine for all tests here; each works on its own copy."""
    return tmp_path_factory.mktemp("built") / "model.engine"


@pytest.fixture
def engine(layer, tmp_path, built):
    if not built.exists():
        build_engine(layer(), built)
    copy = tmp_path / "model.engine"
    copy.write_bytes(built.read_bytes())
    sidecar_of(copy).write_bytes(sidecar_of(built).read_bytes())
    return copy


def rtx(version):
    return Toolkit(Flavour.RTX, module=None, version=version, selectable=(86,))


def changed(record, **changes):
    return dataclasses.replace(record, **changes)


def test_an_untouched_engine_is_taken(engine):
    record = read_engine(engine)
    assert record == records.load(EngineRecord, sidecar_of(engine))
    assert check_fit(record, rtx(record.backend_version), (A10,), "e") is A10


def test_a_truncated_engine(engine):
    whole = engine.read_bytes()
    engine.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"cut off: [\d,]+ of [\d,]+ bytes"):
        read_engine(engine)


@pytest.mark.parametrize("place", [0, 1000, -1])
def test_a_single_changed_byte(engine, place):
    content = bytearray(engine.read_bytes())
    content[place] ^= 1
    engine.write_bytes(content)
    with pytest.raises(UsageError, match="not the file that its sidecar describes"):
        read_engine(engine)


def test_a_file_copied_in_text_mode(engine):
    engine.write_bytes(engine.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(UsageError, match="binary mode"):
        read_engine(engine)


def test_no_sidecar_or_a_broken_one(engine):
    sidecar_of(engine).write_text("{}")
    with pytest.raises(UsageError, match="EngineRecord"):
        read_engine(engine)
    sidecar_of(engine).unlink()
    with pytest.raises(UsageError, match="no sidecar"):
        read_engine(engine)


def test_another_version(engine):
    record = read_engine(engine)
    with pytest.raises(
        DependencyError, match=r"built by TensorRT for RTX 1\.7.*this machine has 1\.5\.0.*mpdeploy build"
    ):
        check_fit(record, rtx("1.5.0"), (A10,), "e")
    classic = changed(record, backend="tensorrt", backend_version="11.4.0", system=this_system())
    portable = changed(classic, options=BuildOptions(features=(Feature.VERSION_COMPATIBLE,)))
    newer = Toolkit(Flavour.TENSORRT, module=None, version="11.6.0", selectable=())
    check_fit(portable, newer, (A10,), "e")
    with pytest.raises(DependencyError, match=r"this machine has 11\.6\.0"):
        check_fit(classic, newer, (A10,), "e")


def test_another_gpu(engine):
    record = read_engine(engine)
    here = rtx(record.backend_version)
    with pytest.raises(DependencyError, match=r"is for SM 80, 86, 89, 120, 121, this GPU \(NVIDIA H200\) is SM 90"):
        check_fit(record, here, (H200,), "e")
    with pytest.raises(DependencyError, match="this machine has none"):
        check_fit(record, here, (), "e")
    compatible = changed(record, options=BuildOptions(features=(Feature.HARDWARE_COMPATIBLE,)))
    assert check_fit(compatible, here, (H200,), "e") is H200


def test_another_system_matters_to_classic_tensorrt_only(engine):
    record = changed(read_engine(engine), system="Windows AMD64")
    check_fit(record, rtx(record.backend_version), (A10,), "e")
    classic = changed(record, backend="tensorrt")
    with pytest.raises(DependencyError, match="built on Windows AMD64"):
        check_fit(classic, Toolkit(Flavour.TENSORRT, None, record.backend_version, ()), (A10,), "e")


@pytest.mark.skipif(bool(find_gpus()), reason="this machine has a GPU")
def test_without_a_gpu_the_runner_says_what_the_engine_needs(engine):
    with pytest.raises(DependencyError, match=r"runs on GPUs of SM 80, 86, 89, 120, 121, and this machine has none"):
        EngineRunner(engine)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (None, r"cannot be read.*truncated.*copy the sidecar again"),
        ({"schema": "mpdeploy.engine/2"}, r"cannot be read.*mpdeploy\.engine/2.*build it again"),
        ({"backend": "magic"}, r"no back end of ours: 'magic'.*the version of mpdeploy that wrote it"),
        ({"capabilities": []}, r"no GPUs that it runs on"),
        ({"source": {"path": "m.onnx", "files": [], "nodes": 1, "values": {}, "weights": {}}}, r"names no model"),
    ],
)
def test_a_sidecar_without_sense_is_told(engine, changes, says):
    sidecar = sidecar_of(engine)
    text = sidecar.read_text()
    sidecar.write_text(text[:300] if changes is None else json.dumps(json.loads(text) | changes))
    with pytest.raises(UsageError, match=says):
        read_engine(engine)
