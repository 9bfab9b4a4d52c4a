"""The build cache: the same makings give the same engine, built once, also by two processes at once."""

import dataclasses
import multiprocessing
import time

import pytest

from mpdeploy.engine.building import build_engine
from mpdeploy.engine.cache import BuildCache, cache_key
from mpdeploy.engine.gpu import Gpu
from mpdeploy.engine.options import BuildOptions, Feature, parse_shapes
from mpdeploy.engine.target import Target
from mpdeploy.errors import BuildError, UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.facts import FileFacts, ModelFacts

MODEL = ModelFacts("model.onnx", (FileFacts("model.onnx", 1, "a" * 64),), 1, {}, {})
PLAIN = BuildOptions()
TARGET = Target((86,), None)


def key(model=MODEL, options=PLAIN, target=TARGET, backend="rtx", version="1.7"):
    return cache_key(model, options, target, backend, version)


def test_the_key_holds_what_decides_the_bytes():
    moved = dataclasses.replace(MODEL, path="elsewhere/other.onnx", files=(FileFacts("other.onnx", 1, "a" * 64),))
    assert key(moved) == key()
    assert key(options=BuildOptions(timing_cache="file")) == key()
    some, more = Feature.STRICT_NANS, Feature.SPARSE_WEIGHTS
    assert key(options=BuildOptions(features=(some, more))) == key(options=BuildOptions(features=(more, some)))
    others = [
        key(dataclasses.replace(MODEL, files=(FileFacts("model.onnx", 1, "b" * 64),))),
        key(options=BuildOptions(tf32=True)),
        key(options=BuildOptions(features=(some,))),
        key(options=BuildOptions(profiles=parse_shapes(["x:1:2:3"]))),
        key(target=Target((89,), None)),
        key(target=Target((86,), Gpu("NVIDIA A10", 86, 1))),
        key(backend="tensorrt"),
        key(version="1.8"),
    ]
    assert len({key(), *others}) == len(others) + 1


def test_a_second_build_is_served_from_the_cache(layer, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    cache, first, second = tmp_path / "cache", tmp_path / "first.engine", tmp_path / "second.engine"
    assert not build_engine(layer(), first, cache=cache).reused
    record = build_engine(layer(), second, cache=cache)
    assert record.reused
    assert first.read_bytes() == second.read_bytes()
    assert not build_engine(layer(), second, cache=cache, options=BuildOptions(capabilities=(86,))).reused


MASKED = """<ir_version: 10, opset_import: ["" : 17]>
g (float[N,L,8] q, bool[N,L] m) => (float[N,L,8] y) <float far = {-1e9}, int64[1] one = {1}> {
    t = Transpose<perm=[0,2,1]>(q)  s = MatMul(q, t)  mask = Unsqueeze(m, one)  masked = Where(mask, far, s)
    p = Softmax<axis=-1>(masked)  y = MatMul(p, q)
}"""


def test_a_graph_that_the_builder_may_not_repeat_comes_out_of_the_cache_byte_for_byte(text_model, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    options = BuildOptions(profiles=parse_shapes(["q:1x1x8:2x4x8:4x16x8", "m:1x1:2x4:4x16"]), capabilities=(86,))
    found = set()
    for number in range(4):
        engine = tmp_path / f"{number}.engine"
        build_engine(text_model(MASKED), engine, options=options, cache=tmp_path / "cache")
        found.add(engine.read_bytes())
    assert len(found) == 1


def test_a_hit_spares_no_proof(layer, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    build_engine(layer(), tmp_path / "model.engine", cache=tmp_path / "cache")
    with pytest.raises(BuildError, match="would not compute in bf16"):
        build_engine(layer(), tmp_path / "model.engine", cache=tmp_path / "cache", expect=Format.BF16)


def test_a_damaged_entry_is_made_again(tmp_path):
    cache, target = BuildCache(tmp_path / "cache"), tmp_path / "target"
    assert not cache.fetch_or_make("key", target, lambda path: path.write_bytes(b"engine"))
    (entry,) = cache.folder.glob("*.engine")
    entry.write_bytes(b"damage")
    assert not cache.fetch_or_make("key", target, lambda path: path.write_bytes(b"engine"))
    assert cache.fetch_or_make("key", target, lambda path: pytest.fail("built again"))
    assert target.read_bytes() == b"engine"


def test_a_failed_build_leaves_no_entry_and_no_lock(tmp_path):
    cache, target = BuildCache(tmp_path / "cache"), tmp_path / "target"

    def fail(path):
        path.write_bytes(b"half")
        raise BuildError("no engine")

    with pytest.raises(BuildError):
        cache.fetch_or_make("key", target, fail)
    assert not list(cache.folder.glob("*.engine"))
    assert not cache.fetch_or_make("key", target, lambda path: path.write_bytes(b"whole"))


def test_a_folder_that_cannot_be_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="build cache cannot be used"):
        BuildCache(tmp_path / "file" / "cache").fetch_or_make("key", tmp_path / "target", lambda path: None)


def _slow_build(folder, name, start, builds):
    def make(path):
        with builds.get_lock():
            builds.value += 1
        time.sleep(0.3)
        path.write_bytes(b"engine")

    start.wait()
    BuildCache(folder / "cache").fetch_or_make("key", folder / name, make)


def test_of_two_processes_one_builds_and_the_other_waits(tmp_path):
    spawn = multiprocessing.get_context("fork")
    start, builds = spawn.Barrier(2), spawn.Value("i", 0)
    processes = [spawn.Process(target=_slow_build, args=(tmp_path, name, start, builds)) for name in ("a", "b")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert builds.value == 1
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == b"engine"
