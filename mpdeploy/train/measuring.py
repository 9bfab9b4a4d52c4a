"""Measuring what a training has reached: the FP32 weights as they would ship, on held-out examples."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import nn

from mpdeploy.amp.dtypes import widened
from mpdeploy.amp.ranges import RangeMeter
from mpdeploy.train.assembly import Assembly
from mpdeploy.train.evaluation import mean_score
from mpdeploy.train.handover import Measured
from mpdeploy.train.loading import LoadedRecipe, blamed_on
from mpdeploy.train.recipe import Data
from mpdeploy.train.world import World


def measure(assembly: Assembly, loaded: LoadedRecipe, data: Data, world: World) -> tuple[float | None, Measured]:
    """Return the metric of the FP32 weights (their average, where one is kept), the weights, and the ranges.

    All processes must call it; where parameters are sharded, the leading one gathers them and measures.
    """
    with _shipped(assembly):
        weights = {name: _whole(tensor) for name, tensor in assembly.model.state_dict().items()}
        if not assembly.sharded:
            return _measured(assembly.model, weights, loaded, data)
    if not world.leads:
        return None, Measured({}, ())
    with blamed_on(loaded.path, "when it builds the model"), torch.random.fork_rng(devices=[]):
        model = loaded.recipe.model().to(world.device)
    model.load_state_dict(weights)
    return _measured(model, weights, loaded, data)


def _measured(
    model: nn.Module, weights: dict[str, torch.Tensor], loaded: LoadedRecipe, data: Data
) -> tuple[float | None, Measured]:
    recipe = loaded.recipe
    meter = RangeMeter(model)
    with blamed_on(loaded.path, "when it is evaluated"), meter.watching():
        metric = mean_score(model, data.held_out, recipe.metric.score, recipe.batch_size)
    return metric, Measured(weights, meter.ranges())


def _shipped(assembly: Assembly) -> AbstractContextManager[None]:
    if assembly.ema:
        return assembly.ema.in_place_of_weights()
    return assembly.engine.full_precision() if not assembly.sharded else contextlib.nullcontext()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    # A sharded tensor (DTensor) has this method.
    gather = getattr(tensor, "full_tensor", None)
    return widened((gather() if gather else tensor).detach()).clone()
