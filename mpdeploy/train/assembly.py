"""From a recipe to what trains: data, model, engine, schedule, average, spread over the processes."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from mpdeploy.amp.ema import Ema
from mpdeploy.amp.engine import Engine
from mpdeploy.amp.levels import AmpConfig
from mpdeploy.amp.observer import StepObserver
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.train.checks import check_data, check_model, check_optimizer, check_schedule
from mpdeploy.train.loading import LoadedRecipe, blamed_on, placed_at
from mpdeploy.train.randomness import Randomness
from mpdeploy.train.recomputation import recompute
from mpdeploy.train.sources import Sources
from mpdeploy.train.world import Sharding, World


@dataclass(frozen=True)
class Assembly:
    """What trains.

    ``call`` runs a training step's forward pass, ``model`` is the plain module behind it; ``sharded`` tells whether
    its parameters are spread over the processes.  The engine steps the ``optimizers``.
    """

    model: nn.Module
    call: Callable[..., Any]
    engine: Engine
    optimizers: tuple[Optimizer, ...]
    schedule: LRScheduler | None
    ema: Ema | None
    sharded: bool

    def learning_rate(self) -> float:
        """Return the learning rate of the optimizer's first group."""
        return float(self.optimizers[0].param_groups[0]["lr"])

    def catch_up(self, steps: int) -> list[dict[str, Any]]:
        """Step the schedule of a training that has just begun to where it is after so many applied steps.

        Returns what its optimizers' groups hold then.
        """
        if self.schedule is None or isinstance(self.schedule, ReduceLROnPlateau):
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that the optimizer was not stepped before
            for _ in range(steps):
                self.schedule.step()
        return [{k: copy.copy(v) for k, v in group.items() if k != "params"} for group in self._groups]

    def set_groups(self, groups: list[dict[str, Any]]) -> None:
        """Let the optimizers' groups hold what ``catch_up`` returned; nothing happens if that was nothing."""
        for own, values in zip(self._groups, groups, strict=bool(groups)):
            own.update(values)

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]


def load_data(loaded: LoadedRecipe, seed: int = 0) -> Sources:
    """Return the recipe's data; raise ``UsageError`` if it does not fit the recipe's inputs."""
    with blamed_on(loaded.path, "when it loads its data"):
        return check_data(loaded.recipe.data(), loaded.recipe, seed)


def assemble(
    loaded: LoadedRecipe,
    config: AmpConfig,
    steps: int,
    randomness: Randomness,
    world: World,
    sharding: Sharding,
    observer: Callable[[nn.Module], StepObserver | None],
    checkpointing: tuple[str, ...] = (),
) -> Assembly:
    """Build the model with fresh weights, equal in all processes, and everything around it."""
    recipe = loaded.recipe
    with blamed_on(loaded.path, "when it builds the model"), randomness.active():
        model = check_model(recipe.model()).train().to(world.device)
        if isinstance(recipe.loss, nn.Module):
            recipe.loss.to(world.device)  # one with weights for the classes, for instance
        if checkpointing:
            recompute(model, checkpointing)
        sharded = world.size > 1 and sharding is Sharding.FSDP
        if sharded:
            from mpdeploy.train.sharding import shard  # imports much of torch.distributed

            shard(model, config)
            config = _sharded(config)
        optimizer = check_optimizer(recipe.optimizer(model))
        schedule = check_schedule(recipe.schedule(optimizer, steps), recipe) if recipe.schedule else None
    with placed_at(loaded.path):
        engine = Engine(model, optimizer, config, group=world.group, observer=observer(model))
    # After the engine: DDP lays out its buckets by the dtypes that it finds.
    call = DistributedDataParallel(model) if world.size > 1 and not sharded else model
    ema = Ema(engine, recipe.ema_decay) if recipe.ema_decay else None
    optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    return Assembly(model, call, engine, optimizers, schedule, ema, sharded)


def _sharded(config: AmpConfig) -> AmpConfig:
    # The shards are the FP32 masters; FSDP itself makes the low-precision weights from them for each pass.
    if not config.masters:
        raise UsageError(
            "FSDP keeps FP32 shards of the weights, which levels without masters have not",
            remedy=f"train at {config.weights.value}-master",
        )
    return replace(config, weights=Format.FP32)
