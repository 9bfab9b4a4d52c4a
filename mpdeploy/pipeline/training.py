"""The stage that trains; what a killed run saved is gone on from."""

from collections.abc import Callable
from pathlib import Path

from mpdeploy.pipeline.config import TrainPart
from mpdeploy.pipeline.inputs import train_inputs
from mpdeploy.pipeline.stages import Done, Workshop
from mpdeploy.train.loop import Training
from mpdeploy.train.loop import to_the_end as to_the_end

Trains = Callable[[Training], None]


def train_stage(shop: Workshop, part: TrainPart, trains: Trains) -> Done:
    """Return the finished training of a recipe; ``trains`` runs it."""
    from mpdeploy.amp.levels import Level
    from mpdeploy.train.loading import load_recipe
    from mpdeploy.train.loop import Settings
    from mpdeploy.train.states import STATES, newest

    def make(work: Path, final: Path) -> None:
        loaded = load_recipe(Path(part.recipe))
        level = Level.named(part.precision) if part.precision else loaded.recipe.level
        settings = Settings(level, part.epochs or loaded.recipe.epochs, part.seed)
        resume = newest(work / STATES) is not None
        training = Training(loaded, work, settings, resume=resume, again="the same command")
        trains(training)
        training.finish()

    return shop.done("train", train_inputs(part), make, goes_on=True)
