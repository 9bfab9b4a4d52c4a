"""What goes into a release, and what it says of itself."""

import dataclasses
import os

import numpy as np
import onnx
import pytest

from mpdeploy import records
from mpdeploy.bundle.check import check_bundle
from mpdeploy.bundle.manifest import Manifest, Role
from mpdeploy.bundle.pack import Packing, pack
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.options import BuildOptions, parse_shapes
from mpdeploy.engine.record import sidecar_of
from mpdeploy.errors import UsageError
from mpdeploy.files import sha256_of
from mpdeploy.runtime.feeds import open_feeds
from mpdeploy.verification.record import DriftReport


def test_everything_stands_in_the_manifest(export, tmp_path):
    licence = tmp_path / "LICENSE.txt"
    licence.write_text("Use it well.")
    sample = open_feeds(str(export / "heldout"))
    manifest = pack(export, tmp_path / "out", Packing("net", sample=sample, licences=(licence,)))
    assert records.load(Manifest, tmp_path / "out" / "manifest.json") == manifest
    assert {file.path: file.role for file in manifest.files} == {
        "models/model.onnx": Role.MODEL,
        "models/model.fp16.onnx": Role.MODEL,
        "models/model.fp16.plan.json": Role.PLAN,
        "reports/drift.fp16.json": Role.REPORT,
        "licences/LICENSE.txt": Role.LICENCE,
        "sample/sample.npz": Role.SAMPLE,
    }
    for file in manifest.files:
        assert sha256_of(tmp_path / "out" / file.path) == file.sha256
    assert np.load(tmp_path / "out" / "sample" / "sample.npz")["x"].shape == (4, 8)
    assert check_bundle(tmp_path / "out") == manifest


def test_the_way_from_model_to_verdict(export, tmp_path):
    manifest = pack(export, tmp_path / "out", Packing("net"))
    low, reference = manifest.models
    assert (low.path, low.format, low.plan) == ("models/model.fp16.onnx", "fp16", "models/model.fp16.plan.json")
    assert low.verdict.passed
    assert low.verdict.reference_sha256 == sha256_of(export / "model.onnx")
    assert (reference.format, reference.verdict) == ("fp32", None)
    assert manifest.passed
    assert "no licence was given" in manifest.notes[0]


def test_equal_contents_are_equal_versions(export, tmp_path):
    first = pack(export, tmp_path / "first", Packing("net"))
    assert pack(export, tmp_path / "second", Packing("net")).version == first.version
    (export / "heldout" / "0.npz").unlink()
    (export / "drift.fp16.json").write_text((export / "drift.fp16.json").read_text() + " ")
    assert pack(export, tmp_path / "third", Packing("net")).version != first.version


def test_weights_outside_go_along(export, tmp_path):
    model = onnx.load(export / "model.onnx")
    (weight,) = model.graph.initializer
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight), weight.name))
    onnx.save(model, export / "big.onnx", save_as_external_data=True, location="big.bin", size_threshold=0)
    manifest = pack(export, tmp_path / "out", Packing("net"))
    assert {file.path for file in manifest.files if file.role is Role.WEIGHTS} == {"models/big.bin"}


def test_an_engine_points_to_its_model(export, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    engine = export / "model.fp16.engine"
    options = BuildOptions(profiles=parse_shapes(["x:1x8:4x8:8x8"]))
    build_engine(export / "model.fp16.onnx", engine, options=options)
    (found,) = pack(export, tmp_path / "out", Packing("net")).engines
    assert (found.path, found.model, found.backend) == (
        "engines/model.fp16.engine", "models/model.fp16.onnx", "rtx",
    )  # fmt: skip
    assert sidecar_of(tmp_path / "out" / found.path).is_file()
    (export / "model.fp16.onnx").unlink()
    (export / "model.fp16.plan.json").unlink()
    orphaned = pack(export, tmp_path / "out", Packing("net"))
    assert not orphaned.passed
    assert orphaned.reasons == ("model.fp16.engine was built from a model that is not in the bundle",)
    engine.write_bytes(engine.read_bytes()[:-1])
    with pytest.raises(UsageError, match="cut off"):
        pack(export, tmp_path / "out", Packing("net"))
    assert check_bundle(tmp_path / "out") == orphaned  # the older bundle survives a failure


def test_a_half_model_without_a_verdict_may_not_be_shipped(export, tmp_path):
    (export / "drift.fp16.json").unlink()
    manifest = pack(export, tmp_path / "out", Packing("net"))
    assert not manifest.passed
    assert manifest.reasons == ("model.fp16.onnx computes in fp16 and no drift report is about it",)


def test_a_verdict_on_another_file_does_not_count(export, tmp_path):
    path = export / "model.fp16.onnx"
    model = onnx.load(path)
    model.producer_name = "somebody else"
    onnx.save(model, path)
    assert not pack(export, tmp_path / "out", Packing("net")).passed


def test_of_several_verdicts_the_worst_counts(export, tmp_path):
    drift = records.load(DriftReport, export / "drift.fp16.json")
    bad = dataclasses.replace(drift.verdict, passed=False, headline="over budget")
    for name in ("a.json", "z.json"):
        records.save(dataclasses.replace(drift, verdict=bad), export / name)
        manifest = pack(export, tmp_path / "out", Packing("net"))
        assert manifest.reasons == ("model.fp16.onnx failed verification: over budget",)
        (export / name).unlink()


@pytest.mark.parametrize(("name", "version"), [("a/b", "1"), ("net", "../1"), (".net", "1"), ("net", "a b")])
def test_names_that_are_no_names(name, version):
    with pytest.raises(UsageError, match="of a release"):
        Packing(name, version)


def test_a_folder_without_models_or_none_at_all(tmp_path):
    with pytest.raises(UsageError, match="no such folder"):
        pack(tmp_path / "nothing", tmp_path / "out", Packing("net"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no ONNX model"):
        pack(tmp_path / "empty", tmp_path / "out", Packing("net"))
    assert not (tmp_path / "out").exists()


def test_the_source_is_never_replaced(export):
    for output in (export, export.parent):
        with pytest.raises(UsageError, match="would replace"):
            pack(export, output, Packing("net"))
    assert (export / "model.onnx").is_file()


def test_names_that_differ_in_case_alone_are_told(export, tmp_path):
    (export / "Model.onnx").write_bytes((export / "model.onnx").read_bytes())
    with pytest.raises(UsageError, match=r"two different files would be models/model\.onnx"):
        pack(export, tmp_path / "out", Packing("net"))
    assert not (tmp_path / "out").exists()


def test_only_a_bundle_is_replaced(export, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    pack(export, home, Packing("net"))  # an empty folder may become one
    pack(export, home, Packing("net"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match=r"would be replaced, and is not a bundle .*other"):
        pack(export, tmp_path / "other", Packing("net"))
    assert (tmp_path / "other" / "letter.txt").read_text() == "dear"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"would replace a device or a pipe .*pipe"):
        pack(export, tmp_path / "pipe", Packing("net"))
    assert (tmp_path / "pipe").is_fifo()


def test_no_release_goes_out_without_an_engine_that_lies_there(export, tmp_path):
    (export / "model.fp16.engine").write_bytes(b"an engine")
    with pytest.raises(UsageError, match=r"the engine has no sidecar.*copy the sidecar along"):
        pack(export, tmp_path / "out", Packing("net"))
    assert not (tmp_path / "out").exists()
