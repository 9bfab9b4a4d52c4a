"""A Hugging Face folder: a config that names a class of transformers, and safetensors beside it."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpdeploy.documents import parse_json
from mpdeploy.errors import DependencyError, ModelError, MpdeployError, UsageError
from mpdeploy.files import readable_file
from mpdeploy.source.silence import silence
from mpdeploy.source.tensors import read_safetensors
from mpdeploy.source.weights import notes_on

_INDEX = "model.safetensors.index.json"
_WISHES = {
    "auto_map": "code of its own",
    "trust_remote_code": "code of its own",
    "quantization_config": "quantised weights",
}
_LAYERS = re.compile(r"(?:^|_)n?(?:layers?|depths?|blocks?)$")
_SLACK = 1 << 26  # elements that a model may have beside those in its files


def load_huggingface(folder: Path) -> tuple[nn.Module, tuple[str, ...]]:
    """Return the model of a folder, in FP32: an architecture of the installed transformers with the folder's weights.

    Beside it notes on what the model left out or how its weights were stored.

    Only files in the folder are read, never the network, and no code in it runs.  Raises ``DependencyError``
    without transformers, ``ModelError`` if the folder wants code of its own or quantised weights, ``UsageError`` if
    its weights are missing, damaged or do not fit.
    """
    where = str(folder)
    _require_inside(folder)
    config = _config(folder)
    # Their headers must be sound before another reader sees them.
    stored = {name: tensor for file in _weight_files(folder) for name, tensor in read_safetensors(file).items()}
    names = config.get("architectures") or []
    name = names[0] if isinstance(names, list) and names else ""
    transformers = _transformers()
    kind = getattr(transformers, str(name), None)
    if not name and "_class_name" in config:
        weights = next(iter(_weight_files(folder)))
        raise ModelError(
            f"a model of diffusers ({config['_class_name']}), which transformers does not have",
            where=where,
            remedy=f"write a function that builds it from this folder's config, and export {weights} with --model "
            "FILE.py:FUNCTION",
        )
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
        raise ModelError(
            f"the config names the architecture {name!r}, which transformers {transformers.__version__} does not have",
            where=where,
            remedy="update transformers, or export a state dict with --model FILE.py:FUNCTION",
        )
    try:
        with silence():
            _require_backed(folder, kind, config, stored)
            model, report = kind.from_pretrained(  # type: ignore[attr-defined]
                str(folder.resolve()),
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
    except MpdeployError:
        raise
    except Exception as error:
        # A config may say anything, and transformers fails on it in any way.
        raise UsageError(
            f"transformers cannot load the folder: {type(error).__name__}: {' '.join(str(error).split())[:300]}",
            where=where,
            remedy="save it again with model.save_pretrained(FOLDER)",
        ) from error
    lacking = sorted(report["missing_keys"])
    if lacking:
        raise UsageError(
            f"the folder lacks {len(lacking)} weights of {name}: {', '.join(lacking[:3])}",
            where=where,
            remedy="the config names another architecture than the weights are of",
        )
    model.config.use_cache = False
    unused = sorted(report["unexpected_keys"])
    left = f"{name} does not use {len(unused)} of the folder's weights: {', '.join(unused[:3])}"
    return model, (*((left,) if unused else ()), *notes_on(stored))


def _config(folder: Path) -> dict[str, Any]:
    path = readable_file(folder / "config.json", "config")
    try:
        config = parse_json(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError("the config is not JSON", where=str(path)) from error
    if not isinstance(config, dict):
        raise UsageError("the config is not a table", where=str(path))
    pending: list[Any] = [config]
    while pending:  # models within models have configs of their own
        part = pending.pop()
        pending += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        for key, what in _WISHES.items() if isinstance(part, dict) else ():
            if part.get(key):
                raise ModelError(
                    f"the config asks for {what} (`{key}`)",
                    where=str(path),
                    remedy="export the FP32 model; for code of your own use a state dict and --model FILE.py:FUNCTION",
                )
    return config


def _require_inside(folder: Path) -> None:
    """Refuse links that lead out of the folder, other than those of transformers' own cache to its `blobs/`."""
    home = folder.resolve()
    roots = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    for path in folder.iterdir():
        if path.is_symlink() and not any(path.resolve().is_relative_to(root) for root in roots):
            raise UsageError("a link leads out of the folder", where=str(path), remedy="put the file in its place")
    adapter = folder / "adapter_config.json"
    if adapter.exists():
        raise UsageError(
            "the folder holds an adapter, which needs another model's weights",
            where=str(adapter),
            remedy="merge it first: model.merge_and_unload().save_pretrained(FOLDER)",
        )


def _require_backed(folder: Path, kind: Any, config: dict[str, Any], stored: dict[str, torch.Tensor]) -> None:
    """Refuse a config of more layers or weights than the files hold, before memory is asked for."""
    for key, value in config.items():
        if isinstance(value, int) and _LAYERS.search(key) and value > len(stored):
            raise UsageError(
                f"the config claims {value} layers (`{key}`), the files hold {len(stored)} tensors", where=str(folder)
            )
    with torch.device("meta"):
        claimed = sum(p.numel() for p in kind(kind.config_class.from_dict(config)).parameters())
    held = sum(tensor.numel() for tensor in stored.values())
    if claimed > held + _SLACK:
        raise UsageError(f"the config claims {claimed} weights, the files hold {held}", where=str(folder))


def _weight_files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise UsageError(
                "the folder holds no .safetensors file",
                where=str(folder),
                remedy="pickled weights are not read; save with model.save_pretrained(FOLDER)",
            )
        return files
    try:
        names = sorted(set(parse_json(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError("the index of the weights is damaged", where=str(index)) from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise UsageError(
                f"the index points outside the folder: {name!r}", where=str(index), remedy="do not load it"
            )
    return [folder / name for name in names]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise DependencyError(
            "a Hugging Face folder needs transformers", remedy="pip install 'mpdeploy[hf]'"
        ) from error
    return transformers
