"""Model repositories that Triton's own schema accepts."""

import dataclasses

import onnx.parser
import pytest
from google.protobuf import text_format

from mpdeploy import records
from mpdeploy.bundle.check import check_bundle
from mpdeploy.bundle.pack import Packing, pack
from mpdeploy.bundle.triton import Serving
from mpdeploy.bundle.triton_config import Batching, Servable, config_of, text_of, triton_schema
from mpdeploy.conversion.api import convert
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.options import BuildOptions, parse_shapes
from mpdeploy.engine.record import EngineRecord, sidecar_of
from mpdeploy.errors import DependencyError, ModelError, UsageError, VerificationFailed
from mpdeploy.files import sha256_of
from mpdeploy.runtime.runner import TensorSpec

pytest.importorskip("tritonclient", reason="tritonclient is not installed")

X = TensorSpec("x", "float32", ("N", 3, "H"))
Y = TensorSpec("y", "float16", ("N", 10))


def parse(text):
    return text_format.Parse(text, triton_schema().ModelConfig())


def config_text(*words):
    return text_of(config_of(*words))


def servable(*, inputs=(X,), outputs=(Y,), on_gpu=False, largest=None):
    return Servable("net", "onnxruntime", "model.onnx", inputs, outputs, on_gpu, largest)


def test_types_and_shapes_without_the_batch():
    config = parse(config_text(servable(), Batching(16, 250), 2))
    schema = triton_schema()
    assert (config.name, config.backend, config.max_batch_size) == ("net", "onnxruntime", 16)
    assert (list(config.input[0].dims), list(config.output[0].dims)) == ([3, -1], [10])
    assert (config.input[0].data_type, config.output[0].data_type) == (schema.TYPE_FP32, schema.TYPE_FP16)
    assert config.dynamic_batching.max_queue_delay_microseconds == 250
    assert (config.instance_group[0].count, config.instance_group[0].kind) == (2, schema.ModelInstanceGroup.KIND_CPU)


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ((TensorSpec("x", "float32", (1, 3)),), (TensorSpec("y", "float32", (1, 2)),)),  # a fixed first axis
        ((TensorSpec("x", "float32", ("N", 3)),), (TensorSpec("y", "float32", ("M", 2)),)),  # counts something else
        ((TensorSpec("x", "float32", ("N", 3)),), (TensorSpec("y", "float32", ("N", "N")),)),  # samples see each other
    ],
)
def test_what_is_no_batch_keeps_its_first_axis(inputs, outputs):
    config = parse(config_text(servable(inputs=inputs, outputs=outputs), Batching(), 1))
    assert config.max_batch_size == 0
    assert not config.HasField("dynamic_batching")
    assert len(config.input[0].dims) == 2


def test_a_scalar_per_sample_is_reshaped_away():
    config = parse(config_text(servable(outputs=(TensorSpec("score", "float32", ("N",)),)), Batching(), 1))
    assert list(config.output[0].dims) == [1]
    assert config.output[0].HasField("reshape")
    assert list(config.output[0].reshape.shape) == []


def test_an_engine_takes_no_more_than_its_profiles():
    assert parse(config_text(servable(on_gpu=True, largest=8), Batching(32), 1)).max_batch_size == 8
    assert parse(config_text(servable(), Batching(0), 1)).max_batch_size == 0


def test_every_type_that_models_use_is_known_to_triton():
    names = "bool float16 float32 float64 bfloat16 string int8 int16 int32 int64 uint8 uint16 uint32 uint64"
    for name in names.split():
        config = parse(config_text(servable(inputs=(TensorSpec("x", name, ("N", 1)),)), Batching(), 1))
        assert config.input[0].data_type != triton_schema().TYPE_INVALID
    with pytest.raises(ModelError, match="no type for x complex64"):
        config_text(servable(inputs=(TensorSpec("x", "complex64", ("N", 1)),)), Batching(), 1)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (TensorSpec("y", "float32", ()), "no scalar outside a batch"),
        (TensorSpec("y", "float32", None), "the rank of y float32"),
        (TensorSpec("y", "float32", ("N", 0)), "no axis of length 0"),
        (TensorSpec("y", "unknown", ("N",)), "no type for y"),
    ],
)
def test_what_triton_refuses_is_left_out_with_a_note(spec, says):
    with pytest.raises(ModelError, match=says):
        config_text(servable(outputs=(spec,)), Batching(), 1)


def written(export, name, body):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 19]> g {body}')
    (export / name).write_bytes(model.SerializeToString())


def test_models_of_every_kind_are_laid_out_or_left_out(export, tmp_path):
    written(export, "total.onnx", "(float[N,8] x) => (float y) { y = ReduceSum<keepdims=0>(x) }")
    written(export, "text model.onnx", '(string[N] x) => (bool[N] y) <string[1] e = {"a"}> { y = Equal(x, e) }')
    written(
        export, "fixed.onnx", "(bfloat16[3,8] x) => (bfloat16[3,8] y, bool[3,8] z) { y = Identity(x) z = IsNaN(x) }"
    )
    written(export, "parts.onnx", "(float[2,8] x) => (seq(float[1,8]) y) { y = SplitToSequence<axis=0>(x) }")
    manifest = pack(export, tmp_path / "out", Packing("net", serving=Serving()))
    assert [note for note in manifest.notes if "Triton" in note] == [
        "Triton cannot serve parts.onnx: it takes only tensors, and an input or output is a sequence or optional",
        "Triton cannot serve total.onnx: Triton takes no scalar outside a batch, and y float32[] is one",
    ]
    home, schema = tmp_path / "out" / "triton", triton_schema()
    text = parse((home / "text_model_onnx" / "config.pbtxt").read_text())
    assert (text.input[0].data_type, text.output[0].data_type) == (schema.TYPE_STRING, schema.TYPE_BOOL)
    assert (text.max_batch_size, list(text.input[0].dims)) == (32, [1])
    fixed = parse((home / "fixed_onnx" / "config.pbtxt").read_text())
    assert (fixed.max_batch_size, fixed.backend, list(fixed.input[0].dims)) == (0, "openvino", [3, 8])
    assert fixed.input[0].data_type == schema.TYPE_BF16


def test_two_models_of_one_name_in_triton_are_told(export, tmp_path):
    written(export, "a.b.onnx", "(float[N,8] x) => (float[N,8] y) { y = Relu(x) }")
    written(export, "a_b.onnx", "(float[N,8] x) => (float[N,8] y) { y = Neg(x) }")
    with pytest.raises(UsageError, match=r"two models would be a_b_onnx"):
        pack(export, tmp_path / "out", Packing("net", serving=Serving()))
    assert not (tmp_path / "out").exists()


def test_the_repository_of_an_export(export, tmp_path):
    convert(export / "model.onnx", export / "model.bf16.onnx", precision="bf16")
    manifest = pack(export, tmp_path / "out", Packing("net", serving=Serving(version=3)))
    home = tmp_path / "out" / "triton"
    assert sorted(path.name for path in home.iterdir()) == ["model_bf16_onnx", "model_fp16_onnx", "model_onnx"]
    backends = {}
    for model in home.iterdir():
        config = parse((model / "config.pbtxt").read_text())
        assert config.name == model.name
        assert (model / "3" / config.default_model_filename).is_file()
        backends[model.name] = config.backend
    assert backends == {
        "model_bf16_onnx": "openvino", "model_fp16_onnx": "onnxruntime", "model_onnx": "onnxruntime",
    }  # fmt: skip
    listed = {file.path for file in manifest.files}
    assert "triton/model_onnx/3/model.onnx" in listed
    assert sha256_of(home / "model_onnx" / "3" / "model.onnx") == sha256_of(export / "model.onnx")


def test_engines_go_to_the_back_end_that_can_run_them(export, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    engine = export / "model.fp16.engine"
    build_engine(export / "model.fp16.onnx", engine, options=BuildOptions(profiles=parse_shapes(["x:1x8:4x8:8x8"])))
    manifest = pack(export, tmp_path / "out", Packing("net", serving=Serving()))
    assert any("no back end for engines by rtx" in note for note in manifest.notes)
    record = records.load(EngineRecord, sidecar_of(engine))
    records.save(dataclasses.replace(record, backend="tensorrt"), sidecar_of(engine))
    pack(export, tmp_path / "out", Packing("net", serving=Serving()))
    config = parse((tmp_path / "out" / "triton" / "model_fp16_plan" / "config.pbtxt").read_text())
    assert (config.backend, config.max_batch_size) == ("tensorrt", 8)
    assert config.instance_group[0].kind == triton_schema().ModelInstanceGroup.KIND_GPU


def test_without_the_schema_the_extra_is_named(export, tmp_path, monkeypatch):
    triton_schema.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"pip install 'mpdeploy\[triton\]'"):
        pack(export, tmp_path / "out", Packing("net", serving=Serving()))
    assert not (tmp_path / "out").exists()


def test_impossible_wishes():
    for wrong in (
        lambda: Serving(version=0),
        lambda: Serving(instances=0),
        lambda: Serving(keep=0),
        lambda: Batching(largest=-1),
    ):
        with pytest.raises(UsageError):
            wrong()


def test_earlier_versions_stay_in_service(export, tmp_path):
    """The newest of them only, as copies; a model with other inputs does not."""
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    pack(export, one, Packing("net", "1", serving=Serving()))
    pack(export, two, Packing("net", "2", serving=Serving(after=one)))
    written(export, "model.onnx", "(float[N,8] other) => (float[N,8] y) { y = Relu(other) }")
    manifest = pack(export, three, Packing("net", "3", serving=Serving(after=two)))
    home = three / "triton"
    assert {path.name for path in (home / "model_fp16_onnx").iterdir()} == {"2", "3", "config.pbtxt"}
    assert {path.name for path in (home / "model_onnx").iterdir()} == {"3", "config.pbtxt"}
    policies = {m.name: parse((m / "config.pbtxt").read_text()).version_policy.latest for m in home.iterdir()}
    assert {name: policy.num_versions for name, policy in policies.items()} == {"model_fp16_onnx": 2, "model_onnx": 1}
    assert "model_fp16_onnx version 2 of net 2 stays in service" in manifest.notes
    assert "model_onnx of net 2 does not stay in service: other inputs or outputs" in manifest.notes
    kept = home / "model_fp16_onnx" / "2" / "model.onnx"
    assert sha256_of(kept) == sha256_of(two / "models" / "model.fp16.onnx")
    assert not kept.samefile(two / "triton" / "model_fp16_onnx" / "2" / "model.onnx")
    assert check_bundle(three) == manifest


def test_only_a_shippable_bundle_with_a_repository_and_older_numbers_stays(export, tmp_path):
    old, plain = tmp_path / "old", tmp_path / "plain"
    pack(export, old, Packing("net", "1", serving=Serving(version=4)))
    pack(export, plain, Packing("net", "1"))
    with pytest.raises(UsageError, match=r"already serves version 4.*choose 5 or more"):
        pack(export, tmp_path / "out", Packing("net", serving=Serving(after=old, version=4)))
    with pytest.raises(UsageError, match="has no Triton repository"):
        pack(export, tmp_path / "out", Packing("net", serving=Serving(after=plain)))
    (old / "triton" / "model_onnx" / "config.pbtxt").write_text("changed")
    with pytest.raises(VerificationFailed, match=r"config\.pbtxt differs"):
        pack(export, tmp_path / "out", Packing("net", serving=Serving(after=old)))
    (export / "drift.fp16.json").unlink()
    pack(export, old, Packing("net", "1", serving=Serving()))
    with pytest.raises(UsageError, match="may not be shipped"):
        pack(export, tmp_path / "out", Packing("net", serving=Serving(after=old)))
    assert not (tmp_path / "out").exists()


def test_a_shape_tensor_of_an_engine_is_told():
    shape = TensorSpec("s", "int64", (2,))
    config = config_of(dataclasses.replace(servable(inputs=(X, shape)), holders=frozenset({"s"})), Batching(), 1)
    assert [port.is_shape_tensor for port in config.input] == [False, True]
    assert (config.max_batch_size, list(config.input[1].dims)) == (0, [2])
