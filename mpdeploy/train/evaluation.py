"""Measuring a model on held-out examples."""

import math
from typing import Any

import torch
from torch import nn

from mpdeploy.train.checks import check_scores
from mpdeploy.train.data import Examples, Source
from mpdeploy.train.recipe import Recipe
from mpdeploy.train.sources import source_of


def in_fp32(outputs: Any) -> Any:
    """Return a model's outputs, a tensor or a tuple of them, named or not, with low-precision floats as FP32."""
    if isinstance(outputs, tuple):
        parts = [in_fp32(output) for output in outputs]
        return type(outputs)(*parts) if hasattr(outputs, "_fields") else tuple(parts)
    return outputs.float() if outputs.is_floating_point() else outputs


@torch.no_grad()
def held_out_scores(
    model: nn.Module, examples: Examples | Source, recipe: Recipe, size: int
) -> tuple[float | None, ...]:
    """Return the mean of each of the recipe's metrics, or of its loss, over all examples, in batches of ``size``.

    The model is in eval mode meanwhile.  None stands where a mean is not finite.
    """
    scores = [metric.score for metric in recipe.metrics]
    device = next(model.parameters()).device
    was_training, count = model.training, 0
    totals = [0.0] * max(len(scores), 1)
    model.eval()
    try:
        for batch in (batch.to(device) for batch in source_of(examples).in_order(size)):
            outputs = in_fp32(model(*batch.inputs))
            if scores:
                sums = [float(check_scores(score, outputs, batch.labels).double().sum()) for score in scores]
            else:
                sums = [float(recipe.loss(outputs, batch.labels)) * len(batch.labels)]
            totals = [total + more for total, more in zip(totals, sums, strict=True)]
            count += len(batch.labels)
    finally:
        model.train(was_training)
    means = [total / max(count, 1) for total in totals]
    return tuple(mean if math.isfinite(mean) else None for mean in means)
