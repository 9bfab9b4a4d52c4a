"""Names of a model's parts without the wrappers that change from one run to the next."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

_COMPILED = "_orig_mod"  # where torch.compile keeps the module
_PARALLEL = "module"


def bare_names(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Return the names of modules, parameters or buffers of ``model`` with the names without wrappers."""
    wrapped = {
        f"{name}.{inner}".removeprefix(".")
        for name, module in model.named_modules()
        for inner, kinds in ((_PARALLEL, (DataParallel, DistributedDataParallel)), (_COMPILED, ()))
        if (isinstance(module, kinds) if kinds else hasattr(module, _COMPILED))
    }
    return {name: _bare(name, wrapped) for name in names} if wrapped else {name: name for name in names}


def fitted(saved: Mapping[str, Any], own: Iterable[str]) -> dict[str, Any]:
    """Return saved values under bare names: what wrappers added to the names goes, unless the model's have it, too."""
    without = {".".join(part for part in name.split(".") if part != _COMPILED): value for name, value in saved.items()}
    wanted = set(own)
    if not wanted.issuperset(without) and all(name.startswith(f"{_PARALLEL}.") for name in without):
        without = {name.removeprefix(f"{_PARALLEL}."): value for name, value in without.items()}
    return without


def _bare(name: str, wrapped: set[str]) -> str:
    parts, path = [], ""
    for part in name.split("."):
        path = f"{path}.{part}".removeprefix(".")
        if path not in wrapped:
            parts.append(part)
    return ".".join(parts)
