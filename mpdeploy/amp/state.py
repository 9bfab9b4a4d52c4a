"""Checks of a saved engine state before any of it is taken over."""

from typing import Any

import torch

from mpdeploy.amp.dtypes import is_low
from mpdeploy.errors import UsageError

_PARTS = ("config", "model", "optimizers", "scales", "streak")


def check_state(state: dict[str, Any], config: str, optimizers: int) -> None:
    """Raise ``UsageError`` unless ``state`` is one that an engine of this configuration returned."""
    missing = [part for part in _PARTS if not isinstance(state, dict) or part not in state]
    if missing:
        raise UsageError(
            f"the saved state lacks {', '.join(missing)}: training cannot go on as if nothing had happened",
            remedy="resume from a state that Engine.state_dict() returned",
        )
    if state["config"] != config:
        raise UsageError(
            f"the saved state is of another configuration: {state['config']}, this engine has {config}",
            remedy="use the same precision again, or load the model's weights alone to start afresh",
        )
    if len(state["optimizers"]) != optimizers:
        raise UsageError(
            f"the saved state is of {len(state['optimizers'])} optimizers, this engine has {optimizers}",
            remedy="make the same optimizers again",
        )
    for name, tensor in state["model"].items():
        if isinstance(tensor, torch.Tensor) and is_low(tensor):
            raise UsageError(
                f"the saved weight `{name}` is {tensor.dtype}: master weights in low precision have lost updates",
                remedy="resume from a state with FP32 weights",
            )
