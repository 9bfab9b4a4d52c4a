"""What a model of transformers takes: from its class, its config, and the settings of its processor."""

import inspect
import json
from pathlib import Path
from typing import Any

import torch

from mpdeploy.source.inputs import Inputs, invented_array
from mpdeploy.train.specs import TensorSpec

_SIZES = {"batch": 2, "length": 16, "target_length": 8, "samples": 8000, "frames": 64}
_IMAGE_SIDE = 224
_TEXT, _DECODER, _IMAGE = "input_ids", "decoder_input_ids", "pixel_values"
_MASKS = ("attention_mask", "token_type_ids")
_PARTS = ("vision_config", "encoder", "text_config")  # where models of several parts keep the configs of these


def usual_inputs(model: Any, folder: Path) -> Inputs | None:
    """Return the inputs that a model has by its class and config, None if they do not tell; examples are random.

    The main input comes first, then what the model cannot do without beside it.
    """
    takes = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "")
    processor = _processor(folder)
    specs: list[TensorSpec] = []
    if main == _TEXT:
        specs += _text(model.config, takes)
    elif main == "input_features":
        specs.append(_features(model.config, processor))
    elif main == "input_values":
        specs.append(_audio(model.config))
    if main == _IMAGE or (_IMAGE in takes and hasattr(model.config, "vision_config")):
        specs.append(_image(model.config, processor))
    if main == _IMAGE and _TEXT in takes and hasattr(model.config, "text_config"):
        specs += _text(model.config, takes)
    if not specs:
        return None
    if getattr(model.config, "is_encoder_decoder", False) and _DECODER in takes:
        specs.append(TensorSpec(_DECODER, "int64", ("batch", "target_length")))
    return Inputs(tuple(specs), {spec.name: _example(spec, seed) for seed, spec in enumerate(specs)}, made_up=True)


def _text(config: Any, takes: Any) -> list[TensorSpec]:
    # Where there are no kinds of tokens to tell apart, their ids would be an input that nobody has.
    kinds = getattr(config, "type_vocab_size", 0) > 1
    names = [_TEXT, *(name for name in _MASKS if name in takes and (kinds or name != "token_type_ids"))]
    return [TensorSpec(name, "int64", ("batch", "length")) for name in names]


def _image(config: Any, processor: dict[str, Any]) -> TensorSpec:
    sizes = (_setting(config, "image_size"), processor.get("crop_size"), processor.get("size"), _IMAGE_SIDE)
    height, width = next(size for size in map(_sides, sizes) if size is not None)
    return TensorSpec(_IMAGE, "float32", ("batch", int(_setting(config, "num_channels") or 3), height, width))


def _features(config: Any, processor: dict[str, Any]) -> TensorSpec:
    bins = (
        _setting(config, "num_mel_bins") or _setting(config, "input_feat_per_channel") or processor.get("feature_size")
    )
    if getattr(config, "model_type", "") == "whisper":
        # Its encoder adds positions to two frames each, and takes no other length.
        return TensorSpec("input_features", "float32", ("batch", int(bins or 80), 2 * config.max_source_positions))
    return TensorSpec("input_features", "float32", ("batch", "frames", int(bins or 80)))


def _audio(config: Any) -> TensorSpec:
    bins, length = _setting(config, "num_mel_bins"), _setting(config, "max_length")
    if bins and length and not hasattr(config, "conv_kernel"):  # spectrograms, and no waves
        return TensorSpec("input_values", "float32", ("batch", int(length), int(bins)))
    return TensorSpec("input_values", "float32", ("batch", "samples"))


def _setting(config: Any, name: str) -> Any:
    """A setting of the model's, or of the first of its parts that has it."""
    for part in (config, *(getattr(config, part, None) for part in _PARTS)):
        if getattr(part, name, None):
            return getattr(part, name)
    return None


def _sides(size: Any) -> tuple[int, int] | None:
    """Height and width, however a config writes them."""
    if isinstance(size, dict):
        edge = size.get("shortest_edge") or size.get("longest_edge")
        size = (size["height"], size["width"]) if {"height", "width"} <= size.keys() else edge
    if isinstance(size, (list, tuple)) and len(size) == 2:
        return int(size[0]), int(size[1])
    return (int(size), int(size)) if isinstance(size, int) and size > 0 else None


def _processor(folder: Path) -> dict[str, Any]:
    try:
        settings = json.loads((folder / "preprocessor_config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _example(spec: TensorSpec, seed: int) -> torch.Tensor:
    shape = tuple(_SIZES.get(str(axis), axis) for axis in spec.shape)
    array = invented_array(TensorSpec(spec.name, spec.dtype, shape), seed)
    return torch.from_numpy(array if spec.name != "attention_mask" else array * 0 + 1)
