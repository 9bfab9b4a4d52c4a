"""`mpdeploy train`: train a recipe with mixed precision and save a checkpoint."""

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TextIO

import click

from mpdeploy.amp.levels import level_words
from mpdeploy.cli.console import say
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.progress import note
from mpdeploy.cli.training import train_to_the_end
from mpdeploy.cli.words import Word

if TYPE_CHECKING:
    from mpdeploy.api import Trained
    from mpdeploy.train.loop import Training

_GOES_ON = "the same command with --resume goes on from there"


def _parts(ctx: click.Context, param: click.Parameter, value: str | None) -> int | Literal["auto"] | None:
    if value is None or value == "auto":
        return "auto" if value else None
    if not value.isdecimal() or int(value) < 1:
        raise click.BadParameter(f"'{value}' is neither a number from 1 nor auto.", ctx, param)
    return int(value)


@click.command("train")
@click.argument("recipe", type=click.Path(path_type=Path))
@click.option("--precision", type=Word(level_words()), help="Precision level; the recipe's own by default.")
@click.option("--resume", is_flag=True, help="Go on where a training in the folder stopped, or beyond with --epochs.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write to  [runs/RECIPE].")
@click.option("--seed", type=click.IntRange(min=0), help="Decides all randomness  [0].")
@click.option("--epochs", type=click.IntRange(min=1), help="Passes over the data; the recipe's own by default.")
@click.option(
    "--accumulate", callback=_parts, metavar="PARTS|auto",
    help="Parts that a batch goes through the model in; auto: more as memory runs out.",
)  # fmt: skip
@click.option(
    "--checkpoint", "checkpointing", multiple=True, metavar="PATTERN",
    help="Modules that compute activations again in the backward pass, such as 'blocks.*'; may be repeated.",
)  # fmt: skip
@click.option(
    "--save-every", type=click.IntRange(min=1), default=1000, show_default=True,
    help="Steps between saved states; each epoch's end is saved, too.",
)  # fmt: skip
@click.option("--keep", type=click.IntRange(min=1), default=1, show_default=True, help="How many states to keep.")
@click.option(
    "--look-every", type=click.IntRange(min=1), default=100, show_default=True,
    help="Steps between close looks of the telemetry.",
)  # fmt: skip
@click.option("--report", is_flag=True, help="Write training.html, the training as a page.")
@click.option("--tensorboard", is_flag=True, help="Write TensorBoard events, too, into tensorboard/.")
@click.option("--wandb", is_flag=True, help="Write an offline run for Weights & Biases, too, into wandb/.")
@click.option("--mlflow", is_flag=True, help="Write a run for MLflow, too, into mlflow/.")
@click.option("--device", help="cpu, cuda, cuda:1; by default a GPU where there is one.")
@click.option(
    "--sharding", type=Word(["ddp", "fsdp"]), default="ddp", show_default=True,
    help="How the processes of torchrun share the model.",
)  # fmt: skip
@click.option("--find-batch", is_flag=True, help="Train nothing: find the largest batch at each level, and its speed.")
@result_options
def command(
    recipe: Path,
    precision: str | None,
    resume: bool,
    output: Path | None,
    seed: int | None,
    epochs: int | None,
    accumulate: int | Literal["auto"] | None,
    checkpointing: tuple[str, ...],
    save_every: int,
    keep: int,
    look_every: int,
    report: bool,
    tensorboard: bool,
    wandb: bool,
    mlflow: bool,
    device: str | None,
    sharding: str,
    find_batch: bool,
) -> Outcome:
    """Train RECIPE, a Python file that defines `recipe`, and write model.pt into the output folder.

    Beside it: best.pt, the checkpoint of the best epoch; heldout/ and calibration/, examples as .npz feeds for
    --data; telemetry.jsonl, what each step did; training.json, what was trained where; states/ to --resume from.

    `mpdeploy init recipe.py` writes a recipe to start from. Several processes: torchrun --nproc-per-node 2 -m
    mpdeploy train RECIPE
    """
    if find_batch:
        from mpdeploy.cli.train_batch import batch_outcome

        return batch_outcome(recipe, precision, checkpointing, device)
    # torch is slow to import; --help need not wait for it.
    from mpdeploy.api import train

    with _told_as_notes():
        trained = train(
            recipe,
            output=output,
            precision=precision,
            resume=resume,
            seed=seed,
            epochs=epochs,
            save_every=save_every,
            keep=keep,
            look_every=look_every,
            accumulate=accumulate,
            checkpointing=checkpointing,
            sharding=sharding,
            device=device,
            report=report,
            logs=_chosen(tensorboard=tensorboard, wandb=wandb, mlflow=mlflow),
            trains=_train,
        )
    return _outcome(trained, recipe)


def _chosen(*, tensorboard: bool, wandb: bool, mlflow: bool) -> list[str]:
    wanted = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
    return [kind for kind, chosen in wanted.items() if chosen]


def _train(training: "Training") -> None:
    name, level = training.name, training.settings.config.name
    if training.world.leads:
        if training.set_aside is not None:
            note(f"an interrupted training was here: its states are in {training.set_aside} until the next one")
        done = training.total_steps - training.steps_left
        if training.steps_left == 0:
            note(f"training {name} in {level}: all {done:,} steps are done")
        elif done:
            note(f"training {name} in {level}: goes on after step {done:,} of {training.total_steps:,}")
        else:
            note(f"training {name} in {level}: {training.total_steps:,} steps")
        for difference in training.differences:
            note(f"otherwise than before: {difference}")
        note(f"{level}: {training.configuration}")
    train_to_the_end(training, f"{name} {level}", training.world, _GOES_ON)


def _outcome(trained: "Trained", recipe: Path) -> Outcome:
    from mpdeploy.train.loading import MODELS

    record = trained.record

    def show() -> None:
        metrics = record.metrics or {record.metric_name: record.metric}
        words = [f"{name} {'not finite' if value is None else f'{value:.4f}'}" for name, value in metrics.items()]
        say(
            f"{trained.checkpoint}: {', '.join(words)} on held-out examples, {record.level}, "
            f"{record.steps_applied} steps applied, {record.steps_skipped} skipped"
        )
        if trained.report:
            say(f"report: {trained.report}")
        # What lies in models/ is found by export itself; any other recipe must be pointed at.
        at_home = recipe.resolve() == (MODELS / recipe.name).resolve()
        say(f"next: mpdeploy export {trained.checkpoint}" + ("" if at_home else f" --recipe {recipe}"))

    document = asdict(trained)
    del document["leads"]
    if trained.report is None:
        del document["report"]
    return Outcome(document, show, speaks=trained.leads)


@contextlib.contextmanager
def _told_as_notes() -> Iterator[None]:
    """Tell warnings about the training in our own way; those of libraries stay as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, RuntimeWarning):
                if os.environ.get("RANK", "0") == "0":  # of several processes one speaks
                    note(f"warning: {message}")
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        yield
