"""A model in any form: opened, exported, and held against the module it came from."""

import json
import shutil
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from mpdeploy.errors import DependencyError, ModelError, UsageError
from mpdeploy.graph import io
from mpdeploy.runtime.feeds import feeds_of
from mpdeploy.source import Given, Kind, check_export, export_fp32_onnx, kind_of, open_source
from mpdeploy.source.factory import build_module

IMAGE = ("image:batch,3,8,8",)


def run(path, feed):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feed)), strict=True))


def held_against(loaded, net, image):
    """The loaded module computes what the network does, and is ready for export."""
    assert torch.allclose(loaded.module(image), net(image), atol=1e-6)
    assert [(spec.name, spec.shape) for spec in loaded.inputs] == [("image", ("batch", 3, 8, 8))]
    assert loaded.outputs == ("output",)
    return loaded


def exported(loaded, path):
    check = check_export(loaded, export_fp32_onnx(loaded, path), run)
    assert check.worst < 1e-5
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return check, {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }


def test_a_state_dict(tmp_path, net, image, factory):
    torch.save(net.state_dict(), tmp_path / "model.pth")
    loaded = held_against(open_source(tmp_path / "model.pth", Given(factory=factory, inputs=IMAGE)), net, image)
    assert loaded.made_up
    check, shapes = exported(loaded, tmp_path / "net.onnx")
    assert shapes == {"image": ["batch", 3, 8, 8], "output": ["batch", 5]}
    assert [sizes["batch"] for sizes in check.sizes] == [4, 1, 3, 8]


def test_safetensors(tmp_path, net, image, factory):
    save = pytest.importorskip("safetensors.torch").save_file
    save({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, tmp_path / "w.safetensors")
    assert kind_of(tmp_path / "w.safetensors") is Kind.SAFETENSORS
    held_against(open_source(tmp_path / "w.safetensors", Given(factory=factory, inputs=IMAGE)), net, image)


@pytest.mark.parametrize("name", ["scripted", "traced", "frozen"])
def test_torchscript(tmp_path, net, image, scripts, name):
    path = scripts / f"{name}.pt"
    assert kind_of(path) is Kind.TORCHSCRIPT
    loaded = held_against(open_source(path, Given(inputs=IMAGE)), net, image)
    _, shapes = exported(loaded, tmp_path / "net.onnx")
    assert shapes["image"] == ["batch", 3, 8, 8]


def test_a_program_needs_no_words(tmp_path, net, image, program):
    assert kind_of(program) is Kind.PROGRAM
    loaded = held_against(open_source(program, Given()), net, image)
    _, shapes = exported(loaded, tmp_path / "net.onnx")
    assert shapes == {"image": ["batch", 3, 8, 8], "output": ["batch", 5]}


def test_a_programs_inputs_may_be_named(program, image):
    loaded = open_source(program, Given(inputs=("photo:n,3,8,8",)))
    assert [str(spec) for spec in loaded.inputs] == ["photo float32[n, 3, 8, 8]"]
    with pytest.raises(UsageError, match=r"--input says photo float32\[n, 3, 9, 9\], the program takes"):
        open_source(program, Given(inputs=("photo:n,3,9,9",)))
    with pytest.raises(UsageError, match="names 2 inputs, the program takes image"):
        open_source(program, Given(inputs=("a:1", "b:1")))
    assert not open_source(program, Given(), feeds_of([{"image": image.numpy()}])).made_up


def test_p17_a_program_in_half_is_no_reference(tmp_path, net, image):
    half = type(net)().half().eval()
    torch.export.save(torch.export.export(half, (image.half(),)), tmp_path / "half.pt2")
    with pytest.raises(ModelError, match=r"computes in half precision .*export\(model\.float\(\)"):
        open_source(tmp_path / "half.pt2", Given())


def test_whole_modules_and_dictionaries_with_one_are_trusted_only_on_demand(tmp_path, net, image):
    torch.save(net, tmp_path / "whole.pt")
    yolo = {"model": type(net)().half(), "ema": net, "epoch": 3, "train_args": {"imgsz": 8}}
    torch.save(yolo, tmp_path / "yolo.pt")
    held_against(open_source(tmp_path / "whole.pt", Given(inputs=IMAGE, trust=True)), net, image)
    with pytest.raises(UsageError, match="both raw weights and their average: `model`, `ema`"):
        open_source(tmp_path / "yolo.pt", Given(inputs=IMAGE, trust=True))
    chosen = Given(inputs=IMAGE, trust=True, weights="ema")
    held_against(open_source(tmp_path / "yolo.pt", chosen), net, image)
    half = open_source(tmp_path / "yolo.pt", Given(inputs=IMAGE, trust=True, weights="model"))
    assert {p.dtype for p in half.module.parameters()} == {torch.float32}
    assert "float16" in half.notes[0]


def test_arguments_by_name_and_outputs_by_key(tmp_path, factory):
    words = ("ids:batch,length:int64", "mask:batch,length")
    given = Given(factory=factory.replace(":Net", ":Text"), inputs=words)
    torch.save(build_module(str(given.factory)).state_dict(), tmp_path / "text.pt")
    loaded = open_source(tmp_path / "text.pt", given)
    assert loaded.outputs == ("logits", "hidden")
    check, shapes = exported(loaded, tmp_path / "text.onnx")
    assert shapes["hidden"] == ["batch", "length", 8]
    assert {tuple(sizes.values()) for sizes in check.sizes} >= {(4, 32), (1, 32), (4, 1), (4, 64)}


def test_e34_a_model_over_protobufs_limit_goes_to_external_data(tmp_path, monkeypatch):
    torch.manual_seed(0)
    torch.save(nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 16)), tmp_path / "model.pt")
    loaded = open_source(tmp_path / "model.pt", Given(inputs=("x:batch,32",), trust=True))
    plain = export_fp32_onnx(loaded, tmp_path / "plain.onnx")
    monkeypatch.setattr(io, "SINGLE_FILE_BYTES", 4096)  # in the place of 2 GiB
    path = export_fp32_onnx(loaded, tmp_path / "out" / "big.onnx")
    assert path.stat().st_size < 4096
    assert {file.name for file in io.files_of(path)} == {file.name for file in path.parent.iterdir()}
    feed = {"x": np.ones((2, 32), np.float32)}
    assert np.array_equal(run(path, feed)["output"], run(plain, feed)["output"])
    # E35: saving again replaces, and neither appends nor leaves orphans.
    first = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    export_fp32_onnx(loaded, path)
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == first


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=30
    )
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("bert")
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(folder)
    return folder, model


def test_a_hugging_face_folder(bert, tmp_path):
    folder, model = bert
    assert kind_of(folder) is Kind.HUGGING_FACE
    loaded = open_source(folder, Given())
    assert [spec.name for spec in loaded.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert loaded.outputs == ("logits",)
    ids = torch.randint(0, 30, (2, 7))
    ours = loaded.module(ids, torch.ones_like(ids), torch.zeros_like(ids))
    assert torch.allclose(ours[0], model(ids).logits, atol=1e-6)
    check, shapes = exported(loaded, tmp_path / "bert.onnx")
    assert shapes["input_ids"] == ["batch", "length"]
    assert len(check.sizes) > 3


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2"])
def test_text_models_find_their_inputs(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    ids = {"vocab_size": 30, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    if kind == "t5":
        config = transformers.T5Config(**ids, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        model = transformers.T5ForConditionalGeneration(config)
    elif kind == "bart":
        sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
                 (("layers", 1), ("attention_heads", 2), ("ffn_dim", 8))}  # fmt: skip
        model = transformers.BartForConditionalGeneration(
            transformers.BartConfig(**ids, **sizes, d_model=8, max_position_embeddings=64, decoder_start_token_id=0)
        )
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**ids, n_embd=8, n_layer=1, n_head=2))
    model.eval().save_pretrained(tmp_path / "hf")
    loaded = open_source(tmp_path / "hf", Given())
    names = ["input_ids", "attention_mask"] + (["decoder_input_ids"] if kind != "gpt2" else [])
    assert [spec.name for spec in loaded.inputs] == names
    source, target = torch.randint(2, 30, (2, 7)), torch.randint(2, 30, (2, 5))
    ours = loaded.module(source, torch.ones_like(source), *([target] if kind != "gpt2" else []))
    theirs = model(input_ids=source, **({"decoder_input_ids": target} if kind != "gpt2" else {}))
    assert torch.allclose(ours[0], theirs.logits, atol=1e-5)
    check, shapes = exported(loaded, tmp_path / "text.onnx")
    assert shapes["logits"] == ["batch", "length" if kind == "gpt2" else "target_length", 30]
    assert {sizes["length"] for sizes in check.sizes} == {16, 1, 15, 32}


def test_a_hugging_face_folder_without_its_weights_or_its_class(bert, tmp_path):
    folder, _ = bert
    shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    (tmp_path / "copy" / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModel"]}))
    with pytest.raises(ModelError, match="names the architecture 'NoSuchModel'"):
        open_source(tmp_path / "copy", Given())
    (tmp_path / "copy" / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    with pytest.raises(UsageError, match=r"lacks \d+ weights of BertForMaskedLM"):
        open_source(tmp_path / "copy", Given())
    (tmp_path / "copy" / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    assert (
        "BertModel does not use 2 of the folder's weights: classifier.bias"
        in open_source(tmp_path / "copy", Given()).notes[0]
    )
    (tmp_path / "copy" / "config.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        open_source(tmp_path / "copy", Given())


def test_without_transformers_the_extra_is_named(bert, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DependencyError, match=r"pip install 'mpdeploy\[hf\]'"):
        open_source(bert[0], Given())


def _tiny(transformers, kind):
    sides = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    image = {**sides, "image_size": 32, "patch_size": 8}
    if kind == "whisper":
        ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
        sizes = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in
                 (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))}  # fmt: skip
        config = transformers.WhisperConfig(
            **ids, **sizes, vocab_size=40, d_model=16, num_mel_bins=8, max_source_positions=20, max_target_positions=40,
            suppress_tokens=None, begin_suppress_tokens=None,
        )  # fmt: skip
        return transformers.WhisperForConditionalGeneration(config)
    if kind == "clip":
        text = {**sides, "vocab_size": 40, "max_position_embeddings": 32, "eos_token_id": 39, "bos_token_id": 1}
        return transformers.CLIPModel(
            transformers.CLIPConfig(text_config={**text, "pad_token_id": 0}, vision_config=image, projection_dim=8)
        )
    if kind == "wav2vec2":
        return transformers.Wav2Vec2ForCTC(
            transformers.Wav2Vec2Config(
                **sides, vocab_size=20, conv_dim=(8, 8), conv_stride=(5, 4), conv_kernel=(10, 8),
                num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2,
            )
        )  # fmt: skip
    config = transformers.SegformerConfig(
        hidden_sizes=[8] * 4, depths=[1] * 4, num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=8, num_labels=4
    )
    return transformers.SegformerForSemanticSegmentation(config)


@pytest.mark.parametrize(
    ("kind", "inputs"),
    [
        ("whisper", {"input_features": ("batch", 8, 40), "decoder_input_ids": ("batch", "target_length")}),
        (
            "clip",
            {
                "input_ids": ("batch", "length"),
                "attention_mask": ("batch", "length"),
                "pixel_values": ("batch", 3, 32, 32),
            },
        ),
        ("wav2vec2", {"input_values": ("batch", "samples")}),
        ("segformer", {"pixel_values": ("batch", 3, 64, 96)}),
    ],
)
def test_models_of_sound_and_images_find_their_inputs(kind, inputs, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    _tiny(transformers, kind).eval().save_pretrained(tmp_path / "hf")
    if kind == "segformer":
        settings = {"size": {"height": 64, "width": 96}}
        (tmp_path / "hf" / "preprocessor_config.json").write_text(json.dumps(settings))
    loaded = open_source(tmp_path / "hf", Given())
    assert {spec.name: spec.shape for spec in loaded.inputs} == inputs
    check, _ = exported(loaded, tmp_path / "m.onnx")
    assert check.worst < 1e-3


def test_folders_of_diffusers_are_told_with_the_way(bert, tmp_path):
    shutil.copytree(bert[0], tmp_path / "pipe" / "unet")
    (tmp_path / "pipe" / "model_index.json").write_text("{}")
    with pytest.raises(UsageError, match=r"a pipeline of diffusers.* export one of them: .*unet"):
        open_source(tmp_path / "pipe", Given())
    (tmp_path / "pipe" / "unet" / "config.json").write_text('{"_class_name": "UNet2DModel"}')
    with pytest.raises(ModelError, match=r"a model of diffusers \(UNet2DModel\).*--model FILE.py:FUNCTION"):
        open_source(tmp_path / "pipe" / "unet", Given())
