"""What a command does, from Python, where it takes several rooms: ``mpdeploy.train``."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mpdeploy.amp.levels import AmpConfig, Level
from mpdeploy.errors import UsageError
from mpdeploy.files import write_text
from mpdeploy.locks import only_one
from mpdeploy.report.training import training_page
from mpdeploy.runtime.apart import require_apart
from mpdeploy.train.checkpoint import CheckpointRecord
from mpdeploy.train.chronicle import RECORD, read_record
from mpdeploy.train.faults import surroundings_told
from mpdeploy.train.handover import BEST, CALIBRATION, CHECKPOINT, HELD_OUT
from mpdeploy.train.loading import LoadedRecipe, load_recipe
from mpdeploy.train.logs import open_log
from mpdeploy.train.loop import TELEMETRY, Settings, Training, to_the_end
from mpdeploy.train.states import STATES, Configuration, newest_record
from mpdeploy.train.telemetry_file import read_telemetry
from mpdeploy.train.world import Sharding, join

PAGE = "training.html"


@dataclass(frozen=True)
class Trained:
    """What a training has written: the paths, what the level was, and the checkpoint's record.

    Of several processes only the one that ``leads`` has written.
    """

    checkpoint: str
    best: str
    heldout: str
    calibration: str
    telemetry: str
    training: str
    report: str | None
    configuration: str
    record: CheckpointRecord
    leads: bool


def train(
    recipe: str | Path,
    *,
    output: str | Path | None = None,
    precision: Level | AmpConfig | str | None = None,
    resume: bool = False,
    seed: int | None = None,
    epochs: int | None = None,
    save_every: int = 1000,
    keep: int = 1,
    look_every: int = 100,
    accumulate: int | Literal["auto"] | None = None,
    checkpointing: Sequence[str] = (),
    sharding: str = "ddp",
    device: str | None = None,
    report: bool = False,
    logs: Sequence[str] = (),
    trains: Callable[[Training], None] = to_the_end,
) -> Trained:
    """Train the recipe in a file and write `model.pt` into a folder; the words are those of `mpdeploy train`.

    Args:
        recipe: A Python file that defines ``recipe``; it is run.
        output: The folder to write to, `runs/RECIPE` by default.
        precision: A level, its word, or a configuration; the recipe's own by default.
        resume: Go on where an interrupted training in the folder stopped; what is not given stays as it was.  With
            more ``epochs`` a finished training goes on, too.
        seed: Decides all randomness; 0 by default.
        epochs: Passes over the data; the recipe's own number by default.
        save_every: Steps between saved states; each epoch's end is saved, too.
        keep: How many states to keep.
        look_every: Steps between close looks of the telemetry.
        accumulate: In how many parts a batch goes through the model; ``"auto"`` finds out.
        checkpointing: Patterns of the modules that compute their activations again in the backward pass.
        sharding: How the processes of torchrun share the model: ``"ddp"`` or ``"fsdp"``.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``; a GPU where there is one by default.
        report: Write `training.html`.
        logs: Whom else to tell: ``"tensorboard"``, ``"wandb"`` (offline), ``"mlflow"``.
        trains: Takes the training and goes through its steps.

    Raises:
        UsageError: Something given is wrong, the folder cannot be written or another training is at work there.
        TrainingDiverged: Nothing finite came any more.
        DependencyError: A package or the device is missing, or another process of the training is lost.
    """
    world, loaded = join(device), load_recipe(recipe)
    folder = Path(output) if output is not None else Path("runs") / loaded.name
    before = newest_record(folder / STATES).configuration if resume else None
    settings = Settings(
        precision=precision or _level_of(before, loaded),
        epochs=epochs or (before.epochs if before else loaded.recipe.epochs),
        seed=seed if seed is not None else before.seed if before else 0,
        save_every=save_every,
        keep=keep,
        look_every=look_every,
        sharding=Sharding(sharding),
        accumulate=accumulate,
        checkpointing=tuple(checkpointing),
    )
    _refuse_overlap(folder, loaded, logs)
    with contextlib.ExitStack() as ending:
        opened = []
        if world.leads:
            ending.enter_context(only_one("training", folder))
            for kind in logs:
                opened.append(open_log(kind, folder, loaded.name))
                ending.callback(opened[-1].close)
        training = Training(loaded, folder, settings, resume=resume, world=world, logs=opened)
        trains(training)
        record = training.finish()
        page = write_page(folder) if report and world.leads else None
    # A process that fails alone does not come here: it would wait for the others, and its message for it.
    world.leave()
    checkpoint, best, heldout, calibration, telemetry, about = (
        str(folder / name) for name in (CHECKPOINT, BEST, HELD_OUT, CALIBRATION, TELEMETRY, RECORD)
    )
    shown, leads = None if page is None else str(page), world.leads
    return Trained(
        checkpoint, best, heldout, calibration, telemetry, about, shown, training.configuration, record, leads
    )


def write_page(folder: Path) -> Path:
    """Write the page of the training in ``folder``; return its path."""
    header, lines = read_telemetry(folder / TELEMETRY)
    if not lines:
        where = str(folder / TELEMETRY)
        raise UsageError("the telemetry holds no steps", where=where, remedy="train at least one step")
    with surroundings_told(folder):
        write_text(folder / PAGE, training_page(header, lines, read_record(folder / RECORD)))
    return folder / PAGE


def _level_of(before: Configuration | None, loaded: LoadedRecipe) -> Level | AmpConfig | str:
    """The precision where none is given: that of the training before, unless it was a configuration of the recipe's."""
    named = before is not None and before.precision in (level.value for level in Level)
    return before.precision if before is not None and named else loaded.recipe.level


def _refuse_overlap(folder: Path, loaded: LoadedRecipe, logs: Sequence[str]) -> None:
    files = (folder / name for name in (CHECKPOINT, BEST, TELEMETRY, RECORD, PAGE))
    folders = (folder / name for name in (HELD_OUT, CALIBRATION, STATES, *logs))
    require_apart(files, folders=folders, others=(loaded.path,))
