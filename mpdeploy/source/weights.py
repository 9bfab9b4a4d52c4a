"""Which tensors of a file are the model's weights: raw or averaged, under whatever name people store them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mpdeploy.errors import UsageError

EMA, MODEL = "ema", "model"  # words for --weights; any other word is the name of an entry

_AVERAGE = re.compile(r"(^|[_.])(ema|swa|averaged?|avg)([_.]|$)|_ema$|^ema", re.IGNORECASE)
_USUAL = ("state_dict", "model_state_dict", "model_state", "model", "net", "network", "module", "weights", "params")
_NO_WEIGHTS = re.compile(r"optim|sched|scaler|callback|loop|hyper|config|args|ema_decay", re.IGNORECASE)
_FP32_BYTES = 4

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Picked:
    """The weights chosen, in FP32, and what a person should know about them."""

    weights: Weights
    notes: tuple[str, ...] = ()


def pick_weights(content: object, choice: str | None, where: str) -> Picked:
    """Return the model's weights from what a file holds, half ones cast to FP32 and named in the notes.

    ``choice`` is ``ema``, ``model``, or the name of an entry.  Raises ``UsageError`` if there are no weights, the
    chosen ones are not there, or both raw and averaged ones are and none was chosen.
    """
    states = _states(content)
    if not states:
        raise UsageError(
            "the file holds no weights: no table of tensors by name",
            where=where,
            remedy="save model.state_dict(), alone or as the entry `state_dict`",
        )
    name = choose(tuple(states), choice, where)
    weights = states[name]
    entry = (f"the weights are those of the entry `{name}`",) if len(states) > 1 or _AVERAGE.search(name) else ()
    notes = (*entry, *notes_on(weights))
    return Picked({key: t.float() if t.is_floating_point() else t for key, t in weights.items()}, notes)


def notes_on(weights: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """Return what a person should know about weights as they are stored: that they are rounded, or not numbers."""
    floats = {name: tensor for name, tensor in weights.items() if tensor.is_floating_point()}
    low = sorted({str(t.dtype).removeprefix("torch.") for t in floats.values() if t.element_size() < _FP32_BYTES})
    stored = f"the weights are stored in {' and '.join(low)}: what that rounding lost is lost; cast to FP32"
    broken = [name for name, t in floats.items() if t.numel() and not t.is_meta and t.float().aminmax().max.isnan()]
    lost = f"`{broken[0] if broken else ''}` and {len(broken) - 1} other weights hold NaN: the training had diverged"
    return (*((stored,) if low else ()), *((lost.replace(" and 0 other weights hold", " holds"),) if broken else ()))


def choose(names: tuple[str, ...], choice: str | None, where: str) -> str:
    """Return which of the entries, all of them weights or models, ``choice`` means; faults as in ``pick_weights``."""
    averages = tuple(name for name in names if _AVERAGE.search(name))
    raw = tuple(name for name in names if name not in averages)
    if choice is None and averages and raw:
        raise UsageError(
            f"it holds both raw weights and their average: {_listed(names)}",
            where=where,
            remedy="choose with --weights ema or --weights model",
        )
    among = {None: names, EMA: averages, MODEL: raw}.get(choice, tuple(n for n in names if n == choice))
    if not among:
        raise UsageError(
            f"there are no weights `{choice}` in it", where=where, remedy=f"it holds {_listed(names)}: choose one"
        )
    usual = [name for name in _USUAL if name in among]
    if len(among) > 1 and not usual:
        raise UsageError(
            f"it holds several sets of weights: {_listed(among)}", where=where, remedy="choose with --weights NAME"
        )
    return usual[0] if len(among) > 1 else among[0]


def _states(content: object) -> dict[str, Weights]:
    """All tables of tensors in the file, by the name of their entry; the file itself is ``model`` or ``ema``."""
    whole = _as_state(content)
    if whole is not None:
        return {EMA if "n_averaged" in whole else MODEL: _without_counter(whole)}
    found: dict[str, Weights] = {}
    if isinstance(content, Mapping):
        for key, value in content.items():
            if not isinstance(key, str) or _NO_WEIGHTS.search(key):
                continue
            state = _as_state(value)
            if state is None and isinstance(value, Mapping):
                inner = [s for s in (_as_state(v) for v in value.values()) if s is not None]
                state = inner[0] if len(inner) == 1 else None
            if state is not None:
                found[key] = _without_counter(state)
    return found


def _as_state(value: object) -> Weights | None:
    if not isinstance(value, Mapping) or not value or not all(isinstance(key, str) for key in value):
        return None
    tensors = {key: v for key, v in value.items() if isinstance(v, torch.Tensor)}
    # Modules may add plain state of their own under `…_extra_state`.
    others = [key for key in value if key not in tensors and not key.endswith("_extra_state")]
    return tensors if tensors and not others else None


def _without_counter(state: Weights) -> Weights:
    return {key: tensor for key, tensor in state.items() if key != "n_averaged"}


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names[:6])
