"""Measuring what a training has reached: the FP32 weights as they would ship, on held-out examples."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import nn

from mpdeploy.amp.dtypes import widened
from mpdeploy.amp.ranges import RangeMeter
from mpdeploy.train.assembly import Assembly
from mpdeploy.train.evaluation import held_out_scores
from mpdeploy.train.handover import Measured
from mpdeploy.train.loading import LoadedRecipe, blamed_on
from mpdeploy.train.sources import Sources
from mpdeploy.train.world import World

Scores = tuple[float | None, ...]  # of each metric, in the recipe's order; None where it is not finite


def measure(
    assembly: Assembly, loaded: LoadedRecipe, data: Sources, world: World, size: int
) -> tuple[Scores, Measured]:
    """Return the metrics of the FP32 weights (their average, where one is kept), the weights, and the ranges.

    Held-out examples go through the model in batches of ``size``.  All processes must call it, and all get the
    metrics; where parameters are sharded, the leading one gathers them and measures.
    """
    scores: Scores | None = None
    measured = Measured({}, ())
    with _shipped(assembly):
        weights = {name: _whole(tensor) for name, tensor in assembly.model.state_dict().items()}
        if not assembly.sharded:
            scores, measured = _measured(assembly.model, weights, loaded, data, size)
    if assembly.sharded and world.leads:
        with blamed_on(loaded.path, "when it builds the model"), torch.random.fork_rng(devices=[]):
            model = loaded.recipe.model().to(world.device)
        model.load_state_dict(weights)
        scores, measured = _measured(model, weights, loaded, data, size)
    return world.led(scores) or (), measured


def _measured(
    model: nn.Module, weights: dict[str, torch.Tensor], loaded: LoadedRecipe, data: Sources, size: int
) -> tuple[Scores, Measured]:
    meter = RangeMeter(model)
    with blamed_on(loaded.path, "when it is evaluated"), meter.watching():
        scores = held_out_scores(model, data.held_out, loaded.recipe, size)
    return scores, Measured(weights, meter.ranges())


def _shipped(assembly: Assembly) -> AbstractContextManager[None]:
    if assembly.ema:
        return assembly.ema.in_place_of_weights()
    return assembly.engine.full_precision() if not assembly.sharded else contextlib.nullcontext()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    # A sharded tensor (DTensor) has this method.
    gather = getattr(tensor, "full_tensor", None)
    return widened((gather() if gather else tensor).detach()).clone()
