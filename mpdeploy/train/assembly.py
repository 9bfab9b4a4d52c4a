"""From a recipe to what trains: data, model, engine, schedule, average, spread over the processes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler

from mpdeploy.amp.ema import Ema
from mpdeploy.amp.engine import Engine
from mpdeploy.amp.levels import AmpConfig
from mpdeploy.amp.observer import StepObserver
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.train.checks import check_data, check_model, check_optimizer, check_schedule
from mpdeploy.train.loading import LoadedRecipe, blamed_on, placed_at
from mpdeploy.train.randomness import Randomness
from mpdeploy.train.recipe import Data
from mpdeploy.train.world import Sharding, World


@dataclass(frozen=True)
class Assembly:
    """What trains.

    ``call`` runs a training step's forward pass, ``model`` is the plain module behind it; ``sharded`` tells whether
    its parameters are spread over the processes.
    """

    model: nn.Module
    call: Callable[..., Any]
    engine: Engine
    schedule: LRScheduler | None
    ema: Ema | None
    sharded: bool


def load_data(loaded: LoadedRecipe) -> Data:
    """Return the recipe's data; raise ``UsageError`` if it does not fit the recipe's inputs."""
    with blamed_on(loaded.path, "when it loads its data"):
        data = loaded.recipe.data()
        check_data(data, loaded.recipe)
    return data


def assemble(
    loaded: LoadedRecipe,
    config: AmpConfig,
    steps: int,
    randomness: Randomness,
    world: World,
    sharding: Sharding,
    observer: Callable[[nn.Module], StepObserver | None],
) -> Assembly:
    """Build the model with fresh weights, equal in all processes, and everything around it."""
    recipe = loaded.recipe
    with blamed_on(loaded.path, "when it builds the model"), randomness.active():
        model = check_model(recipe.model()).train().to(world.device)
        sharded = world.size > 1 and sharding is Sharding.FSDP
        if sharded:
            from mpdeploy.train.sharding import shard  # imports much of torch.distributed

            shard(model, config)
            config = _sharded(config)
        optimizer = check_optimizer(recipe.optimizer(model))
        schedule = check_schedule(recipe.schedule(optimizer, steps)) if recipe.schedule else None
    with placed_at(loaded.path):
        engine = Engine(model, optimizer, config, group=world.group, observer=observer(model))
    # After the engine: DDP lays out its buckets by the dtypes that it finds.
    call = DistributedDataParallel(model) if world.size > 1 and not sharded else model
    ema = Ema(engine, recipe.ema_decay) if recipe.ema_decay else None
    return Assembly(model, call, engine, schedule, ema, sharded)


def _sharded(config: AmpConfig) -> AmpConfig:
    # The shards are the FP32 masters; FSDP itself makes the low-precision weights from them for each pass.
    if not config.masters:
        raise UsageError(
            "FSDP keeps FP32 shards of the weights, which levels without masters have not",
            remedy=f"train at {config.weights.value}-master",
        )
    return replace(config, weights=Format.FP32)
