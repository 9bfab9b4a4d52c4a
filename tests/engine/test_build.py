"""Real engines by TensorRT for RTX, built without a GPU."""

import hashlib
import itertools
import os
import signal
from pathlib import Path

import pytest

from mpdeploy import records
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.monitor import BuildStep
from mpdeploy.engine.options import BuildOptions, parse_shapes
from mpdeploy.engine.record import EngineRecord, sidecar_of
from mpdeploy.errors import BuildError, ModelError, UsageError
from mpdeploy.files import sha256_of
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.facts import model_facts

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")


@pytest.mark.parametrize("kind", [Format.FP32, Format.FP16, Format.BF16])
def test_the_engine_computes_in_the_types_of_the_graph(layer, tmp_path, kind):
    record = build_engine(layer(kind), tmp_path / "model.engine", expect=kind)
    assert record.census.compute == {kind.value: 1}
    assert record.census.weights == {kind.value: 4 * 8}
    assert record.capabilities == (80, 86, 89, 120, 121)
    assert [port.type for port in (*record.inputs, *record.outputs)] == ["fp32", "fp32"]


def test_the_sidecar_is_the_record_and_its_hashes_are_true(layer, tmp_path):
    model, engine = layer(), tmp_path / "deep" / "model.engine"
    record = build_engine(model, engine)
    assert records.load(EngineRecord, sidecar_of(engine)) == record
    assert record.source.files[0].sha256 == sha256_of(model)
    assert record.engine.sha256 == hashlib.sha256(engine.read_bytes()).hexdigest()
    assert record.engine.bytes == engine.stat().st_size > 1000


def test_building_twice_gives_the_same_bytes(layer, tmp_path):
    first, second = tmp_path / "first.engine", tmp_path / "second.engine"
    options = BuildOptions(profiles=parse_shapes(["x:1x4:8x4:32x4"]), capabilities=(89, 86))
    model = layer(rows="N")
    build_engine(model, first, options=options)
    build_engine(model, second, options=options)
    assert first.read_bytes() == second.read_bytes()


def test_the_order_of_targets_does_not_matter(layer, tmp_path):
    first, second = tmp_path / "first.engine", tmp_path / "second.engine"
    build_engine(layer(), first, options=BuildOptions(capabilities=(89, 86)))
    build_engine(layer(), second, options=BuildOptions(capabilities=(86, 89, 86)))
    assert first.read_bytes() == second.read_bytes()


def test_weights_in_an_external_file_are_found(layer, tmp_path, monkeypatch):
    inline = layer(name="inline.onnx")
    outside = layer(name="outside.onnx", external=True)
    monkeypatch.chdir("/")
    build_engine(inline, tmp_path / "inline.engine")
    record = build_engine(outside, tmp_path / "outside.engine")
    assert [file.name for file in record.source.files] == ["outside.onnx", "outside.onnx.data"]
    assert (tmp_path / "inline.engine").read_bytes() == (tmp_path / "outside.engine").read_bytes()


def test_two_profiles_make_one_engine(layer, tmp_path):
    options = BuildOptions(profiles=parse_shapes(["x:1x4:1x4:1x4", "x:2x4:8x4:32x4"]))
    record = build_engine(layer(rows="N"), tmp_path / "model.engine", options=options)
    assert [str(profile.ranges[0]) for profile in record.options.profiles] == ["x:1x4:1x4:1x4", "x:2x4:8x4:32x4"]
    assert record.inputs[0].shape == ("N", 4)


def test_the_build_tells_its_progress(layer, tmp_path):
    steps: list[BuildStep] = []
    build_engine(layer(), tmp_path / "model.engine", progress=steps.append)
    assert len(steps) > 10
    assert steps[-1].done == steps[-1].total > 0
    assert all(before.done <= after.done for before, after in itertools.pairwise(steps))


def _interrupt(step: BuildStep) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def _fail(step: BuildStep) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(("progress", "raised"), [(_interrupt, KeyboardInterrupt), (_fail, ZeroDivisionError)])
def test_a_build_can_be_stopped_and_leaves_nothing_new(layer, tmp_path, progress, raised):
    model, engine = layer(), tmp_path / "model.engine"
    build_engine(model, engine)
    before = _snapshot(tmp_path)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(raised):
        build_engine(model, engine, options=BuildOptions(capabilities=(86,)), progress=progress)
    assert _snapshot(tmp_path) == before
    assert signal.getsignal(signal.SIGINT) is handler


def test_an_fp32_network_fails_where_half_was_expected(layer, tmp_path):
    engine = tmp_path / "model.engine"
    with pytest.raises(
        BuildError, match=r"would not compute in fp16: .* 1 in fp32 .*mpdeploy convert --precision fp16"
    ):
        build_engine(layer(Format.FP32), engine, expect=Format.FP16)
    assert not engine.exists()


def test_mixed_operand_types_are_refused_by_node(layer, tmp_path):
    with pytest.raises(ModelError, match="multiply"):
        build_engine(layer(Format.FP16, stored=Format.FP32), tmp_path / "model.engine")


def test_too_little_workspace_names_the_flag(layer, tmp_path):
    with pytest.raises(BuildError, match="--workspace"):
        build_engine(layer(), tmp_path / "model.engine", options=BuildOptions(workspace=1024))


@pytest.mark.parametrize("content", [b"", b"not a model", None])
def test_a_file_that_is_no_model_is_a_usage_error(layer, tmp_path, content):
    model = layer()
    model.write_bytes(model.read_bytes()[:100] if content is None else content)
    with pytest.raises(UsageError, match=str(model)):
        build_engine(model, tmp_path / "model.engine")
    assert not (tmp_path / "model.engine").exists()


def test_the_model_is_never_overwritten(layer):
    model = layer()
    before = model.read_bytes()
    with pytest.raises(UsageError, match="would replace"):
        build_engine(model, model)
    assert model.read_bytes() == before


def _snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_model_that_changes_while_it_is_read_gives_no_engine(layer, tmp_path, monkeypatch):
    """Its record and the cache would hold the hashes of another model than the engine's."""
    model, other = layer(Format.FP16), layer(Format.FP32, name="other.onnx")

    def slow(loaded, path):
        facts = model_facts(loaded, path)
        path.write_bytes(other.read_bytes())
        return facts

    monkeypatch.setattr("mpdeploy.engine.building.model_facts", slow)
    with pytest.raises(UsageError, match="the model changed while it was read"):
        build_engine(model, tmp_path / "model.engine")
    assert not (tmp_path / "model.engine").exists()
