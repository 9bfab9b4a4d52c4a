"""Modules that compute in FP32 at any level: autocast is off in them, their weights stay FP32."""

import contextlib
import fnmatch
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from mpdeploy.amp.dtypes import widened
from mpdeploy.amp.names import bare_names
from mpdeploy.errors import UsageError


class Fp32Modules:
    """The modules whose names match one of some patterns, with all that is in them.

    A pattern is a glob over the names that ``named_modules()`` gives; `head.*` means `head` itself as well.  Raises
    ``UsageError`` for a pattern that matches none.
    """

    def __init__(self, model: nn.Module, patterns: Sequence[str]) -> None:
        named = dict(model.named_modules())
        bare = bare_names(model, named)
        found: dict[str, nn.Module] = {}
        for pattern in patterns:
            matched = {name: module for name, module in named.items() if name and is_named(bare[name], pattern)}
            if not matched:
                raise UsageError(
                    f"no module is named like `{pattern}`, which should compute in FP32",
                    remedy=f"the model has {', '.join(f'`{bare[name]}`' for name, _ in model.named_children())} and "
                    "what is in them",
                )
            found.update(matched)
        for name in found:
            if isinstance(named[name.rpartition(".")[0]], nn.MultiheadAttention):
                raise UsageError(
                    f"attention takes the weights of `{bare[name]}` without calling it",
                    remedy=f"name the whole attention, `{bare[name].rpartition('.')[0]}`",
                )
        # What is in a module that is found runs inside of it.
        self._outermost = [
            module for name, module in found.items() if not any(_is_inside(name, other) for other in found)
        ]
        self._all = {inner for module in self._outermost for inner in module.modules()}
        self._runs = [(module, _in_fp32(module)) for module in self._outermost]

    @property
    def outermost(self) -> Sequence[nn.Module]:
        """Those of them that are in no other one."""
        return self._outermost

    @property
    def modules(self) -> Collection[nn.Module]:
        """Every module that computes in FP32."""
        return self._all

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Let them compute in FP32 while the context lasts: a forward pass, or a backward one that computes anew."""
        missing = object()
        earlier = [module.__dict__.get("forward", missing) for module, _ in self._runs]
        for module, run in self._runs:
            module.forward = run
        try:
            yield
        finally:
            for (module, _), own in zip(self._runs, earlier, strict=True):
                if own is missing:
                    del module.__dict__["forward"]
                else:
                    module.__dict__["forward"] = own


def _in_fp32(module: nn.Module) -> Callable[..., Any]:
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, widened, (args, kwargs))
        device = next((tensor.device.type for tensor in module.parameters()), "cpu")
        with torch.autocast(device, enabled=False):
            return forward(*args, **kwargs)

    return run


def is_named(name: str, pattern: str) -> bool:
    """Tell whether a module's name is one that a pattern means."""
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(f"{name}.", pattern)


def _is_inside(name: str, other: str) -> bool:
    return name.startswith(f"{other}.")
