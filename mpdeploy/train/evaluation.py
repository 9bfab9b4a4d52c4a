"""Measuring a model on held-out examples."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mpdeploy.train.checks import check_scores
from mpdeploy.train.data import Examples, in_order


def in_fp32(outputs: Any) -> Any:
    """Return a model's outputs, a tensor or a tuple of them, named or not, with low-precision floats as FP32."""
    if isinstance(outputs, tuple):
        parts = [in_fp32(output) for output in outputs]
        return type(outputs)(*parts) if hasattr(outputs, "_fields") else tuple(parts)
    return outputs.float() if outputs.is_floating_point() else outputs


@torch.no_grad()
def mean_score(
    model: nn.Module, examples: Examples, score: Callable[[Any, torch.Tensor], torch.Tensor], size: int
) -> float | None:
    """Return the mean of ``score(outputs, labels)`` over all examples, in batches of ``size``, in eval mode.

    None where the mean is not finite.  The model's mode is what it was before.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        total = 0.0
        for indices in in_order(len(examples), size):
            batch = examples.batch(indices).to(device)
            scores = check_scores(score, in_fp32(model(*batch.inputs)), batch.labels)
            total += float(scores.double().sum())
    finally:
        model.train(was_training)
    mean = total / len(examples)
    return mean if math.isfinite(mean) else None
