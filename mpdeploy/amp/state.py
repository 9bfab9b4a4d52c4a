"""Saved engine states: what is in one, and checks before any of it is taken over."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from mpdeploy.amp.dtypes import is_low
from mpdeploy.amp.levels import AmpConfig
from mpdeploy.errors import UsageError

SCHEMA = "mpdeploy.engine/2"
# In the first schema, `config` held how the configuration prints in Python, and unscaled losses had a scale of 1.
_FIRST = "config"
_PARTS = ("model", "optimizers", "scales", "streak")


def saved_state(
    config: AmpConfig, model: dict[str, torch.Tensor], optimizers: Sequence[Optimizer], scales: Any, streak: int
) -> dict[str, Any]:
    """Return a state that shares no memory with what trains on."""
    return {
        "schema": SCHEMA,
        "level": config.name,
        "fp32_modules": list(config.fp32_modules),
        "model": model,
        "optimizers": [copied(optimizer.state_dict()) for optimizer in optimizers],
        "scales": scales,
        "streak": streak,
    }


def read_state(state: Any, optimizers: Sequence[Optimizer]) -> dict[str, Any]:
    """Return a saved state of any schema in the form of the present one.

    Raises ``UsageError`` unless an engine with such optimizers returned it.  The level need not be the same: the
    weights and the optimizers' states are FP32, whatever the level.
    """
    missing = [part for part in _PARTS if not isinstance(state, Mapping) or part not in state]
    if missing:
        raise UsageError(
            f"the saved state lacks {', '.join(missing)}: training cannot go on as if nothing had happened",
            remedy="resume from a state that Engine.state_dict() returned",
        )
    if _FIRST not in state and state.get("schema") != SCHEMA:
        raise UsageError(
            f"the saved state is of the schema {state.get('schema')!r}, this version reads {SCHEMA}",
            remedy="resume with the version of mpdeploy that saved it, or a later one",
        )
    for name, tensor in state["model"].items():
        if isinstance(tensor, torch.Tensor) and is_low(tensor):
            raise UsageError(
                f"the saved weight `{name}` is {tensor.dtype}: master weights in low precision have lost updates",
                remedy="resume from a state with FP32 weights",
            )
    _refuse_other_optimizers(state["optimizers"], optimizers)
    if _FIRST in state and "scaling=None" in str(state[_FIRST]):
        return {**state, "scales": dict.fromkeys(state["scales"])}
    return dict(state)


def take_over_optimizers(optimizers: Sequence[Optimizer], saved: Sequence[dict[str, Any]]) -> None:
    """Let the optimizers go on from their saved states, which stay as they are."""
    for optimizer, state in zip(optimizers, saved, strict=True):
        optimizer.load_state_dict(copied(state))


def copied(state: Any) -> Any:
    """Return a state, of plain containers, whose tensors are copies that later steps leave alone.

    They are off an accelerator, whose memory is dear, unless they are shards.
    """
    if isinstance(state, torch.Tensor):
        return state.detach().clone() if hasattr(state, "full_tensor") else state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(copied(value) for value in state)
    return state


def _refuse_other_optimizers(saved: Sequence[Mapping[str, Any]], optimizers: Sequence[Optimizer]) -> None:
    if len(saved) != len(optimizers):
        raise UsageError(
            f"the saved state is of {len(saved)} optimizers, this engine has {len(optimizers)}",
            remedy="make the same optimizers again",
        )
    for state, optimizer in zip(saved, optimizers, strict=True):
        was = [len(group["params"]) for group in state["param_groups"]]
        now = [len(group["params"]) for group in optimizer.param_groups]
        if was != now:
            raise UsageError(
                f"the saved optimizer has groups of {was} parameters, this {type(optimizer).__name__} of {now}",
                remedy="make the same optimizers again",
            )
