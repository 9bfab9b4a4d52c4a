"""`mpdeploy train`: train a recipe with mixed precision and save a checkpoint."""

from dataclasses import asdict
from pathlib import Path

import click

from mpdeploy.amp.levels import Level
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.progress import note, track


@click.command("train")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option(
    "--precision",
    type=click.Choice([level.value for level in Level]),
    help="Precision level; the recipe's own by default.",
)
@click.option("--resume", is_flag=True, help="Go on where an interrupted training in the folder stopped.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write to  [runs/RECIPE].")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Decides all randomness.")
@click.option("--epochs", type=click.IntRange(min=1), help="Passes over the data; the recipe's own by default.")
@result_options
def command(
    recipe: Path, precision: str | None, resume: bool, output: Path | None, seed: int, epochs: int | None
) -> Outcome:
    """Train RECIPE, a Python file that defines `recipe`, and write model.pt into the output folder.

    Beside it: heldout/ and calibration/, examples as .npz feeds for --data, and resume.pt.
    """
    # torch is slow to import; --help need not wait for it.
    from mpdeploy.train.loading import MODELS, load_recipe
    from mpdeploy.train.loop import CALIBRATION, CHECKPOINT, HELD_OUT, Settings, Training

    loaded = load_recipe(recipe)
    level = Level(precision) if precision else loaded.recipe.level
    settings = Settings(level, epochs or loaded.recipe.epochs, seed)
    folder = output or Path("runs") / loaded.name
    training = Training(loaded, folder, settings, resume=resume)
    note(f"training {loaded.name} in {level.value}, {training.steps_left} of {training.total_steps} steps")
    for step in track(training.steps(), f"{loaded.name} {level.value}", total=training.steps_left):
        if step.result.skipped:
            note(
                f"step {step.step} skipped: {step.result.skipped.value}; "
                f"loss scale {step.result.scale_before:g} → {step.result.scale_after:g}"
            )
    record = training.finish()
    paths = {
        "checkpoint": str(folder / CHECKPOINT),
        "heldout": str(folder / HELD_OUT),
        "calibration": str(folder / CALIBRATION),
    }

    def show() -> None:
        metric = "not finite" if record.metric is None else f"{record.metric:.4f}"
        print(
            f"{paths['checkpoint']}: {record.metric_name} {metric} on held-out examples, {level.value}, "
            f"{record.steps_applied} steps applied, {record.steps_skipped} skipped"
        )
        # What lies in models/ is found by export itself; any other recipe must be pointed at.
        at_home = recipe.resolve() == (MODELS / recipe.name).resolve()
        print(f"next: mpdeploy export {paths['checkpoint']}" + ("" if at_home else f" --recipe {recipe}"))

    return Outcome({**paths, "record": asdict(record)}, show)
