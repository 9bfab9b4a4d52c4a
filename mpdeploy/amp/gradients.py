"""Gradient arithmetic: the norm, and what is not finite."""

import math
from collections.abc import Sequence

import torch
from torch.nn.utils import get_total_norm


def total_norm(gradients: Sequence[torch.Tensor]) -> float:
    """Return the 2-norm over all elements of all gradients; not finite exactly if some element is not."""
    norm = float(get_total_norm(gradients))
    if math.isfinite(norm) or not all(is_finite(gradient) for gradient in gradients):
        return norm
    # Only the squares overflowed: FP32 squares are finite up to about 1.8e19, FP64 ones far beyond.
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether every element is finite."""
    return bool(torch.isfinite(tensor).all())


def scale_(gradients: Sequence[torch.Tensor], factor: float) -> None:
    """Multiply the gradients by ``factor`` in place."""
    if factor != 1.0:
        torch._foreach_mul_(list(gradients), factor)
