"""Who owns what TensorRT makes, what happens where it makes nothing, what a driver may decide (G1 to G7)."""

import os
import shutil
import subprocess
import sys

import pytest

from mpdeploy.engine import tensorrt
from mpdeploy.engine.backend import Inspection
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.gpu import Gpu
from mpdeploy.engine.loaded import LoadedEngine, load_engine
from mpdeploy.engine.messages import constructed
from mpdeploy.engine.options import BuildOptions, Feature
from mpdeploy.engine.refit import find_source
from mpdeploy.engine.target import Target, choose_target
from mpdeploy.engine.tensorrt import TensorRtBackend
from mpdeploy.engine.toolkit import Flavour, Toolkit
from mpdeploy.errors import BuildError, DependencyError, UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.ort import CPU, CUDA, RTX, TENSORRT, doubt_of

trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
A10 = Gpu("NVIDIA A10", 86, 24 << 30)
SELECTABLE = (80, 86, 89, 120)


def test_what_uses_goes_before_what_is_used():
    gone = []

    class Thing:
        def __init__(self, name):
            self.name = name

        def save(self):
            gone.append("saved")

        def __del__(self):
            gone.append(self.name)

    loaded = LoadedEngine(*(Thing(name) for name in ("runtime", "engine", "config", "kernels", "context")))
    loaded.close()
    assert gone == ["saved", "context", "config", "kernels", "engine", "runtime"]
    loaded.close()
    assert len(gone) == 6


def test_a_constructor_that_gives_nothing_is_told_from_one_that_is_called_wrongly():
    def nothing():
        raise TypeError("pybind11::init(): factory function returned nullptr")

    assert constructed(nothing) is None
    assert constructed(lambda: False) is None
    assert constructed(lambda: "thing") == "thing"
    with pytest.raises(TypeError, match="NoneType"):
        constructed(lambda: None + 1)


def test_an_old_driver_is_a_line_with_tensorrts_reason(layer, tmp_path):
    record = build_engine(layer(), tmp_path / "m.engine")

    class Old:
        def __getattr__(self, name):
            return getattr(trt, name)

        def Runtime(self, logger):
            logger.log(trt.ILogger.ERROR, "CUDA initialization failure with error: 35")
            raise TypeError("tensorrt.Runtime: factory function returned nullptr")

        Builder = Runtime

    kit = Toolkit(Flavour.TENSORRT, Old(), "10.12", ())
    with pytest.raises(DependencyError, match="cannot start: CUDA initialization failure"):
        load_engine(kit, record, tmp_path / "m.engine", A10)
    with pytest.raises(DependencyError, match="cannot start: CUDA initialization failure"):
        TensorRtBackend(kit).parse(layer()).__enter__()


class TestInspection:
    target = Target((86,), A10)

    @pytest.fixture
    def failing(self, monkeypatch):
        def inspect(toolkit, plan):
            raise BuildError("cannot load the engine that it built: cudaError 35")

        monkeypatch.setattr(tensorrt, "inspect", inspect)

    @pytest.mark.usefixtures("failing")
    def test_a_driver_does_not_spoil_a_build_that_needs_none(self):
        seen = TensorRtBackend(Toolkit(Flavour.RTX, trt, "1.7", SELECTABLE)).inspect(b"", self.target)
        assert seen.counts is None
        assert "was not looked into: cannot load the engine that it built: cudaError 35" in seen.doubt

    @pytest.mark.usefixtures("failing")
    def test_it_is_a_fault_where_the_engine_is_for_this_gpu_alone(self):
        with pytest.raises(BuildError, match="cudaError 35"):
            TensorRtBackend(Toolkit(Flavour.TENSORRT, trt, "11.4", ())).inspect(b"", self.target)

    @pytest.mark.usefixtures("failing")
    def test_nobody_looks_without_the_gpu_it_is_for(self):
        backend = TensorRtBackend(Toolkit(Flavour.RTX, trt, "1.7", SELECTABLE))
        for target in (Target((86,), None), Target((120,), A10)):
            assert backend.inspect(b"", target) == Inspection()

    def test_a_doubt_is_a_warning_of_a_built_engine(self, layer, tmp_path, monkeypatch):
        monkeypatch.setattr(TensorRtBackend, "inspect", lambda self, engine, target: Inspection({"fp32": 1}))
        record = build_engine(layer(), tmp_path / "m.engine", expect=Format.FP16)
        assert any("cannot tell whether it computes in fp16" in text for text in record.warnings)
        monkeypatch.setattr(
            TensorRtBackend, "inspect", lambda self, engine, target: Inspection(doubt="not looked into")
        )
        assert "not looked into" in build_engine(layer(), tmp_path / "m.engine").warnings


@pytest.mark.parametrize("feature", [Feature.STRIP_WEIGHTS, Feature.REFIT])
def test_rtx_engines_whose_weights_come_later_are_for_one_gpu(feature):
    kit = Toolkit(Flavour.RTX, None, "1.7", SELECTABLE)
    assert choose_target(kit, BuildOptions(features=(feature,)), (A10,)).capabilities == (86,)
    one = BuildOptions(features=(feature,), capabilities=(89,))
    assert choose_target(kit, one, (A10,)).capabilities == (89,)
    with pytest.raises(UsageError, match=r"for one SM, not for 86, 89 .*build once for each, as in --sm 86"):
        choose_target(kit, BuildOptions(features=(feature,), capabilities=(86, 89)), (A10,))


def test_weights_in_another_file_are_looked_at_too(layer, tmp_path):
    model = layer(external=True)
    record = build_engine(model, tmp_path / "m.engine")
    assert find_source(record, tmp_path / "m.engine") == model
    data = tmp_path / "model.onnx.data"
    data.write_bytes(bytes(data.stat().st_size))
    with pytest.raises(UsageError, match=r"without its weights.*put model\.onnx\.data \(SHA-256"):
        find_source(record, tmp_path / "m.engine")
    data.unlink()
    with pytest.raises(UsageError, match=r"put model\.onnx\.data"):
        find_source(record, tmp_path / "m.engine")


@pytest.mark.parametrize("provider", [TENSORRT, RTX])
def test_providers_that_take_tf32_are_evidence_only_where_the_driver_keeps_them_from_it(provider):
    def doubt(environment, *, low=False):
        return doubt_of(provider, low=low, fuses_integers=False, environment=environment)

    assert "NVIDIA_TF32_OVERRIDE=0" in doubt({})
    assert "NVIDIA_TF32_OVERRIDE=0" in doubt({"NVIDIA_TF32_OVERRIDE": "1"}, low=True)
    assert doubt({"NVIDIA_TF32_OVERRIDE": "0"}) == ""
    assert doubt_of(CUDA, low=True, fuses_integers=False, environment={}) == ""
    assert doubt_of(CPU, low=True, fuses_integers=False, environment={}) != ""
    assert doubt_of(CPU, low=False, fuses_integers=False, environment={}) == ""
    assert doubt_of("Other", low=False, fuses_integers=False, environment={}) != ""


DRIVER = """
int cuInit(unsigned flags) { return CODE; }
int cuDeviceGetCount(int *count) { *count = GPUS; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int length, int device) { name[0] = 'A' + device; name[1] = 0; return 0; }
int cuDeviceTotalMem_v2(unsigned long *bytes, int device) { *bytes = 1ul << 30; return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = which == 75 ? 8 + device : 6; return 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None or sys.platform != "linux", reason="no C compiler here")
class TestDriver:
    @pytest.fixture
    def ask(self, tmp_path):
        def run(code, gpus=1):
            (tmp_path / "cuda.c").write_text(DRIVER.replace("CODE", str(code)).replace("GPUS", str(gpus)))
            library = tmp_path / "libcuda.so.1"
            subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "cuda.c"], check=True)
            script = "from mpdeploy.engine.gpu import *; print(find_gpus()); print(driver_fault())"
            environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
            done = subprocess.run(
                [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
            )
            return done.stdout.splitlines()

        return run

    def test_gpus_of_two_kinds(self, ask):
        found, fault = ask(0, gpus=2)
        assert "name='A', capability=86" in found
        assert "name='B', capability=96" in found
        assert fault == ""

    @pytest.mark.parametrize(
        ("code", "says"),
        [(100, ""), (803, "does not go with the kernel's"), (804, "too old"), (999, "error 999"), (35, "too old")],
    )
    def test_no_gpu_is_told_from_a_driver_that_does_not_work(self, ask, code, says):
        found, fault = ask(code)
        assert found == "()"
        assert says in fault
        assert bool(says) == bool(fault)


def test_the_drivers_fault_stands_in_the_refusal(monkeypatch):
    monkeypatch.setattr("mpdeploy.engine.target.driver_fault", lambda: "the driver fails with error 999")
    kit = Toolkit(Flavour.TENSORRT, None, "11.4", ())
    with pytest.raises(DependencyError, match="this machine has none that works: the driver fails with error 999"):
        choose_target(kit, BuildOptions(), ())
