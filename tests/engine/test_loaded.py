"""From an engine's bytes to a context, with a stand-in for the parts that need a GPU: cases T7, T8, T18."""

import dataclasses

import onnx.parser
import pytest

from mpdeploy.engine.building import build_engine
from mpdeploy.engine.gpu import Gpu
from mpdeploy.engine.kernels import KernelCache, kernel_cache_key, kernel_cache_path
from mpdeploy.engine.loaded import load_engine
from mpdeploy.engine.messages import logger_for
from mpdeploy.engine.options import BuildOptions, Feature
from mpdeploy.engine.refit import find_source
from mpdeploy.engine.toolkit import Flavour, Toolkit
from mpdeploy.errors import DependencyError, ModelError, UsageError
from tests.engine.stand_in import Engine

trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")

A10 = Gpu("NVIDIA A10", 86, 24 << 30)


@pytest.fixture
def built(tmp_path):
    """A real engine with its model, in a folder of its own."""
    folder = tmp_path / "built"
    folder.mkdir()
    text = '<ir_version: 10, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    (folder / "m.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    return folder / "m.engine", build_engine(folder / "m.onnx", folder / "m.engine")


class Cache:
    """Kernels that were compiled, as bytes; ``takes`` says whether it takes stored ones."""

    def __init__(self, takes=True):
        self.content, self.takes = b"", takes

    def deserialize(self, blob):
        self.content = bytes(blob) if self.takes else b""
        return self.takes

    def serialize(self):
        return self.content


class Config:
    dynamic_shapes_kernel_specialization_strategy = trt.DynamicShapesKernelSpecializationStrategy.LAZY

    def __init__(self):
        self.cache = Cache()
        self.attached = None

    def create_runtime_cache(self):
        return self.cache

    def set_runtime_cache(self, cache):
        self.attached = cache
        return True


class Compiling(Engine):
    """An engine by a TensorRT that compiles on the GPU that runs it."""

    def create_runtime_config(self):
        self.config = Config()
        return self.config

    def create_execution_context(self, config=None):
        assert config is self.config
        return super().create_execution_context()


class Module:
    """The real module but for what needs a GPU: its runtime gives ``engine``, after saying ``says``."""

    def __init__(self, engine, says="", *, caches=True):
        self._engine, self._says, self._caches = engine, says, caches

    def __getattr__(self, name):
        if name == "IRuntimeCache" and not self.__dict__["_caches"]:
            raise AttributeError(name)
        return getattr(trt, name)

    def Runtime(self, logger):
        module = self

        class Runtime:
            engine_host_code_allowed = False

            def deserialize_cuda_engine(self, content):
                module.code_allowed = self.engine_host_code_allowed
                if module._says:
                    logger.log(trt.ILogger.ERROR, module._says)
                return module._engine

        self.runtime = Runtime()
        return self.runtime


def toolkit(engine, says="", *, caches=True):
    return Toolkit(Flavour.RTX, Module(engine, says, caches=caches), "1.7.1", (86,))


def with_features(record, *features):
    return dataclasses.replace(record, options=BuildOptions(features=features))


def test_an_engine_is_loaded_with_the_kernels_of_the_time_before(built):
    path, record = built
    engine = Compiling(trt, record, lambda x: x)
    loaded = load_engine(toolkit(engine), record, path, A10)
    config = engine.config
    assert config.attached is config.cache
    eager = trt.DynamicShapesKernelSpecializationStrategy.EAGER
    assert config.dynamic_shapes_kernel_specialization_strategy == eager
    config.cache.content = b"compiled"
    loaded.kernels.save()
    again = Compiling(trt, record, lambda x: x)
    load_engine(toolkit(again), record, path, A10)
    assert again.config.cache.content == b"compiled"
    elsewhere = Compiling(trt, record, lambda x: x)
    load_engine(toolkit(elsewhere), record, path, dataclasses.replace(A10, name="NVIDIA A10G"))
    assert elsewhere.config.cache.content == b""


def test_a_tensorrt_without_such_a_cache_needs_none(built):
    path, record = built
    for engine, caches in ((Engine(trt, record, lambda x: x), True), (Engine(trt, record, lambda x: x), False)):
        assert load_engine(toolkit(engine, caches=caches), record, path, A10).kernels is None
    assert not list(path.parent.glob("*.kernels"))


def test_a_refusal_has_tensorrts_reason(built):
    path, record = built
    with pytest.raises(DependencyError, match=r"cannot load the engine: the version tag differs.*mpdeploy doctor"):
        load_engine(toolkit(None, "the version tag differs"), record, path, A10)
    engine = Engine(trt, record, lambda x: x)
    engine.create_execution_context = lambda: None
    with pytest.raises(DependencyError, match="cannot make room for the engine"):
        load_engine(toolkit(engine), record, path, A10)


def test_t16_an_engine_with_other_ports_than_its_sidecar_is_not_run(built):
    path, record = built
    other = dataclasses.replace(record, inputs=(dataclasses.replace(record.inputs[0], type="fp16"),))
    with pytest.raises(UsageError, match="input 'x' of the engine is fp32, its sidecar says fp16"):
        load_engine(toolkit(Engine(trt, record, lambda x: x)), other, path, A10)


def test_where_tensorrt_logs_nothing_its_diagnosis_speaks(built):
    path, record = built
    kit = toolkit(None)
    runtime = kit.module.Runtime(logger_for(kit.module))
    flags = trt.EngineInvalidityDiagnostics
    type(runtime).get_engine_validity = lambda self, content: (
        trt.EngineValidity.INVALID,
        int(flags.UNSUPPORTED_CC) | int(flags.OLD_CUDA_DRIVER),
    )
    kit.module.Runtime = lambda logger: runtime
    with pytest.raises(DependencyError, match="cannot load the engine: unsupported cc"):
        load_engine(kit, record, path, A10)


def test_the_real_runtime_refuses_in_one_line_without_a_gpu(built):
    from mpdeploy.engine.gpu import find_gpus

    if find_gpus():
        pytest.skip("this machine has a GPU")
    path, record = built
    with pytest.raises(DependencyError, match=r"cannot load the engine: .*driver") as caught:
        load_engine(Toolkit(Flavour.RTX, trt, trt.__version__, (86,)), record, path, A10)
    assert "\n" not in str(caught.value)


def test_weights_are_streamed_where_the_engine_was_built_for_it(built):
    path, record = built
    engine = Engine(trt, record, lambda x: x)
    load_engine(toolkit(engine), record, path, A10)
    assert engine.weight_streaming_budget_v2 == -1
    load_engine(toolkit(engine), with_features(record, Feature.WEIGHT_STREAMING), path, A10)
    assert engine.weight_streaming_budget_v2 == engine.get_weight_streaming_automatic_budget()


def test_code_in_an_engine_runs_only_for_those_who_trust_it(built, monkeypatch):
    path, record = built
    record = with_features(record, Feature.VERSION_COMPATIBLE)
    kit = toolkit(Engine(trt, record, lambda x: x))
    monkeypatch.delenv("MPDEPLOY_TRUST_ENGINE_CODE", raising=False)
    with pytest.raises(UsageError, match=r"code that runs on this machine's CPU.*MPDEPLOY_TRUST_ENGINE_CODE=1"):
        load_engine(kit, record, path, A10)
    assert not hasattr(kit.module, "code_allowed")  # not a byte was handed over
    monkeypatch.setenv("MPDEPLOY_TRUST_ENGINE_CODE", "1")
    load_engine(kit, record, path, A10)
    assert kit.module.code_allowed


class TestStripped:
    @pytest.fixture
    def refitting(self, built, monkeypatch):
        path, record = built
        record = with_features(record, Feature.STRIP_WEIGHTS)
        kit = toolkit(Engine(trt, record, lambda x: x))
        calls = []

        class Parser:
            num_errors = 0

            def __init__(self, refitter, logger):
                pass

            def refit_from_file(self, model):
                calls.append(model)
                return True

        class Refitter:
            takes = True

            def __init__(self, engine, logger):
                self._logger = logger

            def refit_cuda_engine(self):
                calls.append("refit")
                if not Refitter.takes:
                    self._logger.log(trt.ILogger.ERROR, "weights are missing")
                return Refitter.takes

        kit.module.Refitter, kit.module.OnnxParserRefitter = Refitter, Parser
        return kit, record, path, calls

    def test_weights_come_from_the_model(self, refitting):
        kit, record, path, calls = refitting
        load_engine(kit, record, path, A10)
        assert calls == [str(path.with_name("m.onnx")), "refit"]

    def test_also_in_a_bundle(self, refitting, tmp_path):
        kit, record, path, calls = refitting
        (tmp_path / "b" / "models").mkdir(parents=True)
        (tmp_path / "b" / "engines").mkdir()
        moved = path.rename(tmp_path / "b" / "engines" / "m.engine")
        model = path.with_name("m.onnx").rename(tmp_path / "b" / "models" / "m.onnx")
        load_engine(kit, record, moved, A10)
        assert calls[0] == str(model)

    def test_another_model_will_not_do(self, refitting):
        _, record, path, _ = refitting
        path.with_name("m.onnx").write_bytes(b"another")
        with pytest.raises(UsageError, match=r"without its weights.*put m\.onnx \(SHA-256"):
            find_source(record, path)

    def test_a_refusal(self, refitting):
        kit, record, path, _ = refitting
        kit.module.Refitter.takes = False
        with pytest.raises(ModelError, match="does not take the model's weights: weights are missing"):
            load_engine(kit, record, path, A10)


class TestKernels:
    @pytest.fixture
    def store(self, tmp_path):
        def make(key="key", content=b"", *, takes=True, path=tmp_path / "m.engine.kernels"):
            cache = Cache(takes)
            cache.content = content
            return KernelCache(cache, key, path), cache

        return make

    def test_what_was_saved_is_loaded(self, store, tmp_path):
        store(content=b"a\nb")[0].save()
        kernels, cache = store()
        assert kernels.load()
        assert cache.content == b"a\nb"
        assert [path.name for path in tmp_path.iterdir()] == ["m.engine.kernels"]

    @pytest.mark.parametrize("place", [0, 30, -1])
    def test_damage_never_reaches_tensorrt(self, store, tmp_path, place):
        store(content=b"kernels")[0].save()
        content = bytearray((tmp_path / "m.engine.kernels").read_bytes())
        content[place] ^= 1
        (tmp_path / "m.engine.kernels").write_bytes(content)
        kernels, cache = store()
        assert not kernels.load()
        assert cache.content == b""

    def test_another_engine_library_or_gpu_is_another_key(self, store, built):
        _, record = built
        other = dataclasses.replace(record, engine=dataclasses.replace(record.engine, sha256="0" * 64))
        keys = [
            kernel_cache_key(record, "1.7", A10),
            kernel_cache_key(other, "1.7", A10),
            kernel_cache_key(record, "1.8", A10),
            kernel_cache_key(record, "1.7", dataclasses.replace(A10, name="other")),
        ]
        assert len(set(keys)) == 4
        store("one", b"kernels")[0].save()
        assert not store("two")[0].load()

    def test_what_tensorrt_does_not_take_is_compiled_anew_and_replaced(self, store):
        store(content=b"old driver")[0].save()
        kernels, cache = store(takes=False)
        assert not kernels.load()
        cache.content = b"new driver"
        kernels.save()
        again, cache = store()
        assert again.load()
        assert cache.content == b"new driver"

    def test_nothing_new_is_not_written(self, store, tmp_path):
        kernels, cache = store(content=b"kernels")
        kernels.save()
        (tmp_path / "m.engine.kernels").unlink()
        kernels.save()
        assert not (tmp_path / "m.engine.kernels").exists()
        cache.content = b"more kernels"
        kernels.save()
        assert (tmp_path / "m.engine.kernels").exists()

    def test_a_place_that_cannot_be_written_is_done_without(self, store, tmp_path):
        (tmp_path / "file").write_text("")
        store(content=b"kernels", path=tmp_path / "file" / "x.kernels")[0].save()
        store(content=b"kernels", path=None)[0].save()
        store(content=b"")[0].save()
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_the_place(self, built, tmp_path, monkeypatch):
        path, record = built
        monkeypatch.delenv("MPDEPLOY_KERNEL_CACHE", raising=False)
        assert kernel_cache_path(path, record) == path.with_name("m.engine.kernels")
        # A bundle is what it was packed as; nothing is added to it.
        (path.parent.parent / "manifest.sha256").write_text("")
        assert kernel_cache_path(path, record) is None
        monkeypatch.setenv("MPDEPLOY_KERNEL_CACHE", str(tmp_path / "kernels"))
        assert kernel_cache_path(path, record) == tmp_path / "kernels" / f"{record.engine.sha256}.kernels"


def test_one_logger_is_made_for_a_module():
    module = Module(None)
    assert logger_for(module) is logger_for(module)
