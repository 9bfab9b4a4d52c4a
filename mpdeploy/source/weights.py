"""The weights of a model out of what a file holds, in FP32, with what a person should know about them."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from mpdeploy.errors import UsageError
from mpdeploy.source.entries import choose, is_average, tables_in

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
    states = tables_in(content, torch.Tensor)
    if not states:
        raise UsageError(
            "the file holds no weights: no table of tensors by name",
            where=where,
            remedy="save model.state_dict(), alone or as the entry `state_dict`",
        )
    name = choose(tuple(states), choice, where)
    weights = states[name]
    entry = (f"the weights are those of the entry `{name}`",) if len(states) > 1 or is_average(name) else ()
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
