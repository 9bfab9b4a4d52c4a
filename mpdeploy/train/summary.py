"""A training in a few words and numbers: what `training.json` and its page say of it."""

import torch

from mpdeploy.amp.levels import AmpConfig
from mpdeploy.numerics.training import Session, TrainingRecord
from mpdeploy.train.assembly import Assembly
from mpdeploy.train.chronicle import device_words, processor
from mpdeploy.train.loading import LoadedRecipe
from mpdeploy.train.settings import Settings
from mpdeploy.train.states import Position
from mpdeploy.train.world import World


def record_of(
    loaded: LoadedRecipe, settings: Settings, assembly: Assembly, position: Position, steps: int, *, finished: bool
) -> TrainingRecord:
    """Return the record of a training at a position, as yet without sessions."""
    recipe = loaded.recipe
    return TrainingRecord(
        name=loaded.name,
        recipe_sha256=loaded.id.sha256,
        seed=settings.seed,
        epochs=settings.epochs,
        steps=steps,
        batch_size=recipe.batch_size,
        clip_norm=recipe.clip_norm,
        ema_decay=recipe.ema_decay,
        optimizer=", ".join(type(optimizer).__name__ for optimizer in assembly.optimizers),
        schedule=type(assembly.schedule).__name__ if assembly.schedule else None,
        metrics=recipe.metric_names,
        higher_is_better=recipe.higher_is_better,
        history=position.history,
        sessions=(),
        steps_applied=position.applied,
        steps_skipped=position.skipped,
        finished=finished,
    )


def session_of(settings: Settings, config: AmpConfig, world: World, last_step: int, parts: int) -> Session:
    """Return what this run of a training is, as yet without its times."""
    return Session(
        started="",
        seconds=0.0,
        first_step=0,
        last_step=last_step,
        level=settings.config.name,
        configuration=str(config),
        accumulate=parts,
        processes=world.size,
        sharding=settings.sharding.value if world.size > 1 else "",
        device=device_words(world.device),
        processor=processor(),
        threads=torch.get_num_threads(),
        torch_version=str(torch.__version__),
    )
