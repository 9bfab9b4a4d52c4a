"""Gradient arithmetic: norms, scaling, and what is not finite, for dense, sparse and sharded gradients."""

import math
from collections.abc import Sequence

import torch
from torch.nn.utils import get_total_norm


def values_of(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors that hold the gradients' values; writing to them writes to the gradients.

    A sparse gradient is coalesced first: what several indices say of one row is added up.
    """
    values = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            parameter.grad = gradient.coalesce()
            gradient = parameter.grad._values()
        values.append(gradient)
    return values


def total_norm(values: Sequence[torch.Tensor]) -> float:
    """Return the 2-norm over all elements of all gradients; not finite exactly if some element is not.

    Gradients in shards of several processes count as a whole.
    """
    norm = _item(get_total_norm(values))
    if math.isfinite(norm) or not all(is_finite(value) for value in values):
        return norm
    # Only the squares overflowed: FP32 squares are finite up to about 1.8e19, FP64 ones far beyond.
    return math.sqrt(sum(_item(value.double().square().sum()) for value in values))


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether every element is finite, in all shards."""
    return math.isfinite(_item(tensor.detach().abs().max())) if tensor.numel() else True


def scale_(values: Sequence[torch.Tensor], factor: float) -> None:
    """Multiply the gradients by ``factor`` in place."""
    if factor != 1.0 and values:
        torch._foreach_mul_(list(values), factor)


def _item(tensor: torch.Tensor) -> float:
    # Sharded tensors (DTensor) have this method; their module takes long to import and is not needed for others.
    whole = getattr(tensor, "full_tensor", None)
    return float(whole() if whole else tensor)
