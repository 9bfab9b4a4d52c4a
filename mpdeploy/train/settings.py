"""What a user decides about one training."""

from dataclasses import dataclass, replace
from typing import Literal

from mpdeploy.amp.levels import AmpConfig, Level
from mpdeploy.amp.telemetry import INTERVAL
from mpdeploy.errors import UsageError
from mpdeploy.train.recipe import Recipe
from mpdeploy.train.world import Sharding, World


@dataclass(frozen=True)
class Settings:
    """What a user decides about one training.

    States to resume from are saved after each epoch and every ``save_every`` steps; the newest ``keep`` stay.
    Every ``look_every`` steps telemetry looks closely.  ``accumulate`` and ``checkpointing`` stand in for those of
    the recipe.
    """

    precision: Level | AmpConfig | str
    epochs: int
    seed: int = 0
    save_every: int = 1000
    keep: int = 1
    look_every: int = INTERVAL
    sharding: Sharding = Sharding.DDP
    accumulate: int | Literal["auto"] | None = None
    checkpointing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if min(self.epochs, self.save_every, self.keep, self.look_every) < 1:
            raise UsageError("epochs, saved states and intervals are counted from 1", remedy="give larger numbers")
        if self.accumulate not in (None, "auto") and int(self.accumulate) < 1:
            raise UsageError(f"a batch cannot go in {self.accumulate} parts", remedy="give a number from 1, or auto")

    @property
    def config(self) -> AmpConfig:
        """The configuration of the precision."""
        return AmpConfig.of(self.precision)

    def config_for(self, recipe: Recipe) -> AmpConfig:
        """Return the configuration of the precision, with what the recipe keeps in FP32."""
        patterns = dict.fromkeys((*self.config.fp32_modules, *recipe.fp32_modules))
        return replace(self.config, fp32_modules=tuple(patterns))

    def parts_for(self, recipe: Recipe, world: World) -> tuple[int, bool]:
        """Return in how many parts a batch goes at first, and whether there may be more as memory runs out."""
        wanted = recipe.accumulate if self.accumulate is None else self.accumulate
        if wanted == "auto" and world.size > 1:
            raise UsageError(
                'accumulate="auto" is for one process: several would have to run out of memory together',
                remedy="give --accumulate a number",
            )
        return (1, True) if wanted == "auto" else (min(wanted, recipe.batch_size), False)
