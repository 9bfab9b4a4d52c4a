"""From any file that holds a model to a module that is ready for export."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from mpdeploy.errors import UsageError
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.source.adapter import adapt
from mpdeploy.source.entries import EMA, MODEL, choose
from mpdeploy.source.factory import build_module
from mpdeploy.source.fitting import fit_weights
from mpdeploy.source.given import Given
from mpdeploy.source.huggingface import load_huggingface
from mpdeploy.source.huggingface_inputs import usual_inputs
from mpdeploy.source.inputs import Inputs, find_inputs
from mpdeploy.source.kinds import Kind, kind_of
from mpdeploy.source.loaded import LoadedModule
from mpdeploy.source.loading import load_module, load_state
from mpdeploy.source.missing import require_complete
from mpdeploy.source.program import open_program
from mpdeploy.source.tensors import read_safetensors, read_torch
from mpdeploy.source.torchscript import load_torchscript
from mpdeploy.source.ultralytics import switch_to_export
from mpdeploy.source.weights import notes_on, pick_weights

_OURS = {"record", "weights", "examples"}
_STATE = {"record", "state"}


def open_source(path: Path, given: Given, data: Feeds | None = None, *, timeout: float | None = None) -> LoadedModule:
    """Return the model at ``path``: anything that ``kinds.Kind`` names but an ONNX file.

    ``data`` gives inputs and examples where ``given`` does not.  The model is run once, which may take ``timeout``
    seconds.  Raises ``UsageError`` for a file that is damaged
    or does not go with what is given, ``ModelError`` for one that would run code, ``DependencyError`` for a missing
    package.
    """
    kind, where = kind_of(path), str(path)
    if given.outputs and kind in (Kind.STATE, Kind.PROGRAM):
        raise _fixed_outputs(where)
    if kind is Kind.STATE:
        return load_state(path, _recipe(given))
    if kind is Kind.HUGGING_FACE:
        model, notes = load_huggingface(path)
        suggested = None if given.inputs or data is not None else usual_inputs(model, path)
        inputs = suggested or find_inputs(model, given.inputs, data, where)
        ready = _ready(model, inputs, where, given, timeout)
        return replace(ready, notes=notes)
    if kind is Kind.PROGRAM:
        return open_program(path, given.inputs, data, timeout)
    if kind is Kind.TORCHSCRIPT:
        script = load_torchscript(path)
        return _ready(script, find_inputs(script, given.inputs, data, where), where, given, timeout)
    if kind is Kind.SHARDED:
        from mpdeploy.source.sharded import read_sharded  # imports much of torch.distributed

        return _from_weights(read_sharded(path), given, data, where, timeout)
    if kind is Kind.SAFETENSORS:
        return _from_weights(read_safetensors(path), given, data, where, timeout)
    content = read_torch(path, trust=given.trust)
    if isinstance(content, Mapping) and content.keys() in (_OURS, _STATE) and given.outputs:
        raise _fixed_outputs(where)
    if isinstance(content, Mapping) and content.keys() == _OURS:
        loaded = load_module(path, _recipe(given))
        _check_choice(loaded, given.weights, where)
        return loaded
    if isinstance(content, Mapping) and content.keys() == _STATE:
        return load_state(path, _recipe(given))
    module = _module_in(content, given.weights, where)
    if module is None:
        return _from_weights(content, given, data, where, timeout)
    notes = notes_on({**dict(module.named_parameters()), **dict(module.named_buffers())})
    module = module.float().cpu().eval().requires_grad_(False)
    return replace(_ready(module, find_inputs(module, given.inputs, data, where), where, given, timeout), notes=notes)


def _fixed_outputs(where: str) -> UsageError:
    return UsageError(
        "the file says itself which outputs the model has",
        where=where,
        remedy="leave --keep-output out, and change what its forward() returns",
    )


def _from_weights(content: object, given: Given, data: Feeds | None, where: str, timeout: float | None) -> LoadedModule:
    require_complete(Path(where), given, with_data=data is not None)
    picked = pick_weights(content, given.weights, where)
    if given.factory is None:
        names, folder = ", ".join(list(picked.weights)[:3]), Path(where).parent
        raise UsageError(
            f"the file holds weights ({len(picked.weights)}: {names}…) but not the model they belong to",
            where=where,
            remedy="name the function that builds it with --model FILE.py:FUNCTION"
            + (f", or give the folder {folder}" if (folder / "config.json").is_file() else ""),
        )
    model = build_module(given.factory).float().cpu()
    remedy = f"does {given.factory} build the model that was saved?"
    notes = fit_weights(model, picked.weights, where, remedy, given.ignore_weights)
    model.eval().requires_grad_(False)
    loaded = _ready(model, find_inputs(model, given.inputs, data, where), where, given, timeout)
    return replace(loaded, notes=(*picked.notes, *notes))


def _ready(module: Any, inputs: Inputs, where: str, given: Given, timeout: float | None) -> LoadedModule:
    if isinstance(module, nn.Module):
        module = module.eval()
        switch_to_export(module)
        for parameter in module.parameters():
            parameter.requires_grad_(False)
    adapted, outputs = adapt(module, inputs, where, given.outputs, timeout=timeout)
    return LoadedModule(adapted, inputs.specs, outputs, inputs.examples, Path(where).name, made_up=inputs.made_up)


def _module_in(content: object, choice: str | None, where: str) -> nn.Module | None:
    """The module in a trusted pickle: itself, or an entry of a dictionary, as YOLO's checkpoints have it."""
    if isinstance(content, nn.Module):
        return content
    if not isinstance(content, Mapping):
        return None
    modules = {str(key): value for key, value in content.items() if isinstance(value, nn.Module)}
    return modules[choose(tuple(modules), choice, where)] if modules else None


def _recipe(given: Given) -> Path | None:
    return None if given.recipe is None else Path(given.recipe)


def _check_choice(loaded: LoadedModule, choice: str | None, where: str) -> None:
    averaged = loaded.record is not None and loaded.record.ema_decay is not None
    if choice is not None and choice != (EMA if averaged else MODEL):
        held = "the average of the weights" if averaged else "the weights themselves"
        raise UsageError(f"the checkpoint holds {held} only", where=where, remedy=f"leave --weights {choice} out")
