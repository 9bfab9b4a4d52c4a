"""`mpdeploy train`: train a recipe with mixed precision and save a checkpoint."""

import warnings
from dataclasses import asdict
from pathlib import Path

import click

from mpdeploy.amp.levels import Level, level_words
from mpdeploy.cli.console import say
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.progress import note
from mpdeploy.cli.training import train_to_the_end
from mpdeploy.cli.words import Word
from mpdeploy.errors import UsageError

PAGE = "training.html"
_GOES_ON = "the same command with --resume goes on from there"


@click.command("train")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--precision", type=Word(level_words()), help="Precision level; the recipe's own by default.")
@click.option("--resume", is_flag=True, help="Go on where an interrupted training in the folder stopped.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write to  [runs/RECIPE].")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Decides all randomness.")
@click.option("--epochs", type=click.IntRange(min=1), help="Passes over the data; the recipe's own by default.")
@click.option(
    "--save-every", type=click.IntRange(min=1), default=1000, show_default=True,
    help="Steps between saved states; each epoch's end is saved, too.",
)  # fmt: skip
@click.option("--keep", type=click.IntRange(min=1), default=1, show_default=True, help="How many states to keep.")
@click.option(
    "--look-every", type=click.IntRange(min=1), default=100, show_default=True,
    help="Steps between close looks of the telemetry.",
)  # fmt: skip
@click.option("--report", is_flag=True, help="Write training.html, a picture of the telemetry.")
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard events, too, into tensorboard/.")
@click.option(
    "--sharding", type=Word(["ddp", "fsdp"]), default="ddp", show_default=True,
    help="How the processes of torchrun share the model.",
)  # fmt: skip
@result_options
def command(
    recipe: Path,
    precision: str | None,
    resume: bool,
    output: Path | None,
    seed: int,
    epochs: int | None,
    save_every: int,
    keep: int,
    look_every: int,
    report: bool,
    tensorboard: bool,
    sharding: str,
) -> Outcome:
    """Train RECIPE, a Python file that defines `recipe`, and write model.pt into the output folder.

    Beside it: best.pt, the checkpoint of the best epoch; heldout/ and calibration/, examples as .npz feeds for
    --data; telemetry.jsonl, what the training measured; states/ to --resume from.

    Several processes: torchrun --nproc-per-node 2 -m mpdeploy train RECIPE
    """
    # torch is slow to import; --help need not wait for it.
    from mpdeploy.runtime.apart import require_apart
    from mpdeploy.train.handover import BEST, CALIBRATION, CHECKPOINT, HELD_OUT
    from mpdeploy.train.loading import MODELS, load_recipe
    from mpdeploy.train.loop import TELEMETRY, Settings, Training
    from mpdeploy.train.states import STATES
    from mpdeploy.train.tensorboard import tensorboard_sink
    from mpdeploy.train.world import Sharding, join

    world = join()
    try:
        loaded = load_recipe(recipe)
        chosen = Level.named(precision) if precision else loaded.recipe.level
        epochs = epochs or loaded.recipe.epochs
        settings = Settings(chosen, epochs, seed, save_every, keep, look_every, Sharding(sharding))
        config, folder = settings.config, output or Path("runs") / loaded.name
        written, whole = (CHECKPOINT, BEST, TELEMETRY, PAGE), (HELD_OUT, CALIBRATION, STATES)
        require_apart((folder / n for n in written), folders=(folder / n for n in whole), others=(recipe,))
        sink = tensorboard_sink(folder / "tensorboard") if tensorboard and world.leads else None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            training = Training(loaded, folder, settings, resume=resume, world=world, sink=sink)
        if world.leads:
            for warning in caught:
                note(f"warning: {warning.message}")
            if training.set_aside is not None:
                note(f"an interrupted training was here: its states are in {training.set_aside} until the next one")
            note(f"training {loaded.name} in {config.name}, {training.steps_left} of {training.total_steps} steps")
            note(f"{config.name}: {config}")
        train_to_the_end(training, f"{loaded.name} {config.name}", world, _GOES_ON)
        record = training.finish()
    finally:
        world.leave()
    paths = {
        "checkpoint": str(folder / CHECKPOINT),
        "best": str(folder / BEST),
        "heldout": str(folder / HELD_OUT),
        "calibration": str(folder / CALIBRATION),
        "telemetry": str(folder / TELEMETRY),
    }
    if report and world.leads:
        paths["report"] = str(_write_report(folder / TELEMETRY, folder / PAGE))

    def show() -> None:
        metric = "not finite" if record.metric is None else f"{record.metric:.4f}"
        say(
            f"{paths['checkpoint']}: {record.metric_name} {metric} on held-out examples, {config.name}, "
            f"{record.steps_applied} steps applied, {record.steps_skipped} skipped"
        )
        if "report" in paths:
            say(f"report: {paths['report']}")
        # What lies in models/ is found by export itself; any other recipe must be pointed at.
        at_home = recipe.resolve() == (MODELS / recipe.name).resolve()
        say(f"next: mpdeploy export {paths['checkpoint']}" + ("" if at_home else f" --recipe {recipe}"))

    document = {**paths, "configuration": str(config), "record": asdict(record)}
    return Outcome(document, show, speaks=world.leads)


def _write_report(telemetry: Path, page: Path) -> Path:
    from mpdeploy.files import write_text
    from mpdeploy.report.training import training_page
    from mpdeploy.train.telemetry_file import read_telemetry

    header, lines = read_telemetry(telemetry)
    if not lines:
        raise UsageError("the telemetry holds no steps", where=str(telemetry), remedy="train at least one step")
    write_text(page, training_page(header, lines))
    return page
