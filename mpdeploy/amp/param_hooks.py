"""Hooks that users register on parameters, and that must not see the loss scale."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def hooks_in_true_units(parameters: Iterable[torch.Tensor], scale: float) -> Iterator[None]:
    """Let the hooks on parameters see, and return, gradients divided by ``scale`` while the context lasts.

    These are the hooks of ``register_hook`` and ``register_post_accumulate_grad_hook``.
    """
    replaced: list[tuple[dict[int, Any], int, Callable[..., Any]]] = []
    for parameter in parameters if scale != 1 else ():
        # torch keeps them in these dictionaries, and looks into them when a gradient has come.
        for name, unscaled in (("_backward_hooks", _OnGradient), ("_post_accumulate_grad_hooks", _OnParameter)):
            hooks: dict[int, Any] = getattr(parameter, name, None) or {}
            for key, hook in list(hooks.items()):
                replaced.append((hooks, key, hook))
                hooks[key] = unscaled(hook, scale)
    try:
        yield
    finally:
        for hooks, key, hook in replaced:
            if key in hooks:  # else it has removed itself
                hooks[key] = hook


class _OnGradient:
    def __init__(self, hook: Callable[[torch.Tensor], torch.Tensor | None], scale: float) -> None:
        self._hook, self._scale = hook, scale

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(gradient.dtype, torch.float32)
        unscaled = gradient.to(wide) / self._scale
        changed = self._hook(unscaled)
        return ((unscaled if changed is None else changed) * self._scale).to(gradient.dtype)


class _OnParameter:
    def __init__(self, hook: Callable[[torch.Tensor], None], scale: float) -> None:
        self._hook, self._scale = hook, scale

    @torch.no_grad()
    def __call__(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            parameter.grad.div_(self._scale)
        self._hook(parameter)
        if parameter.grad is not None:
            parameter.grad.mul_(self._scale)
