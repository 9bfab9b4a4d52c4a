"""Activation checkpointing: modules that compute their activations again in the backward pass."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mpdeploy.errors import UsageError


def recompute(model: nn.Module, patterns: Sequence[str]) -> None:
    """Let the modules whose names match one of ``patterns`` keep nothing of a training step but their inputs.

    A module inside of one that matches is left as it is.  Gradients, random numbers and BatchNorm's statistics are
    what they would be without.  Raises ``UsageError`` for a pattern that matches nothing.
    """
    names = [name for name, _ in model.named_modules() if name]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UsageError(
                f"no module is named like `{pattern}`, whose activations were to be computed again",
                remedy=f"the model has {', '.join(names[:8])}{' …' if len(names) > 8 else ''}",
            )
    matching = {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}
    for name, module in model.named_modules():
        if name in matching and not any(name.startswith(f"{other}.") for other in matching):
            module.forward = _Recomputed(module, module.forward)


class _Recomputed:
    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self._module, self._forward = module, forward
        functools.update_wrapper(self, forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (self._module.training and torch.is_grad_enabled()):
            return self._forward(*args, **kwargs)
        return checkpoint(self._forward, *args, use_reentrant=False, context_fn=self._contexts, **kwargs)

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return contextlib.nullcontext(), _on_copies(self._module)


@contextlib.contextmanager
def _on_copies(module: nn.Module) -> Iterator[None]:
    """Let the module work on copies of its buffers: the first pass has moved them already."""
    own = [(part, dict(part._buffers)) for part in module.modules()]
    for part, buffers in own:
        part._buffers.update({name: None if buffer is None else buffer.clone() for name, buffer in buffers.items()})
    try:
        yield
    finally:
        for part, buffers in own:
            part._buffers.update(buffers)
