"""The function that builds a user's model; it is imported only from where the user points."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from mpdeploy.errors import UsageError
from mpdeploy.runtime.plugins import importing_from, is_plugin, load_plugin


def build_module(source: str) -> nn.Module:
    """Return the module that ``module.py:factory`` or ``package.module:factory`` gives, called without arguments.

    Raises ``UsageError`` if there is no such function, it fails, or what it returns is no ``torch.nn.Module``.
    """
    made = load_plugin(source, "model") if is_plugin(source) else _from_package(source)
    if isinstance(made, nn.Module):
        return made
    folder = Path(source.rpartition(":")[0]).parent if is_plugin(source) else Path()
    try:
        with importing_from(folder):
            module = made()
    except Exception as error:
        raise UsageError(
            f"the model function failed: {type(error).__name__}: {error}",
            where=source,
            remedy="it is called without arguments: give a function that needs none",
        ) from error
    if not isinstance(module, nn.Module):
        raise UsageError(f"the model function returned a {type(module).__name__}, not a torch.nn.Module", where=source)
    return module


def _from_package(source: str) -> Callable[..., Any]:
    package, colon, name = source.rpartition(":")
    if not colon or not all(part.isidentifier() for part in (*package.split("."), name)):
        raise UsageError(f"{source!r} names no function", remedy="write FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION")
    try:
        with importing_from(Path()):
            module = importlib.import_module(package)
    except Exception as error:
        raise UsageError(
            f"the module {package} cannot be imported: {type(error).__name__}: {error}",
            where=source,
            remedy="start in the folder that it lies in, install it, or write FILE.py:FUNCTION",
        ) from error
    made = getattr(module, name, None)
    if not callable(made):
        known = sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
        raise UsageError(
            f"the module {package} has no function {name!r}",
            where=source,
            remedy=f"it has {', '.join(known[:8]) or 'none'}",
        )
    return made  # type: ignore[no-any-return]
