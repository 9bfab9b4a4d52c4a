"""`mpdeploy pipeline`: train, export, convert, verify, build and bundle, as stages that are done once."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpdeploy.cli.console import say, write_text
from mpdeploy.cli.console import show as show_table
from mpdeploy.cli.export import told, watched
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.progress import note

if TYPE_CHECKING:
    from mpdeploy.pipeline import DeployResult, Voice
    from mpdeploy.train.loop import Training


@click.command(
    "pipeline",
    epilog="DEPLOY.toml has the tables [train] or [model], and [convert], [verify], [build], [bundle]; "
    "`mpdeploy pipeline --example` shows all keys.",
)
@click.argument("deployment", metavar="DEPLOY.toml", type=click.Path(path_type=Path), required=False)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Write here instead of the folder named in the file."
)
@click.option("--example", is_flag=True, help="Print a file with all keys and stop.")
@result_options
def command(deployment: Path | None, output: Path | None, example: bool) -> Outcome:
    """Run what DEPLOY.toml describes: train or take a model, export, convert, verify, build, bundle.

    A stage whose inputs have not changed is not done again, and a run that was killed goes on where it was.  In the
    output folder `latest` leads to the models and the report, `release` to the bundle: always a whole one.  Exit
    code 1 if a model's drift is over budget; then there is no engine and no bundle, and the report says why.
    """
    from dataclasses import replace

    from mpdeploy import pipeline
    from mpdeploy.errors import UsageError

    if example:
        text = pipeline.EXAMPLE
        return Outcome({"example": text}, lambda: write_text(text))
    if deployment is None:
        raise UsageError("no file was named", where="mpdeploy pipeline", remedy="write mpdeploy pipeline DEPLOY.toml")
    wanted = pipeline.read_deployment(deployment)
    if output is not None:
        wanted = replace(wanted, output=str(output))
    result = pipeline.deploy(wanted, voice=voice(), commands=(f"mpdeploy pipeline {deployment}",))
    return Outcome(result, lambda: show(result), exit_code=0 if result.passed else 1)


def voice() -> "Voice":
    """Return how a pipeline's progress is told on standard error."""
    from mpdeploy.pipeline import Voice

    return Voice(stage=told, watch=watched, unchanged=lambda name: note("   unchanged"), trains=_train)


def _train(training: "Training") -> None:
    from mpdeploy.cli.training import train_to_the_end

    train_to_the_end(training, "training", training.world, "the same command goes on from there")


def show(result: "DeployResult") -> None:
    """Print the table of formats, what was made anew, and the line that a person acts on."""
    from mpdeploy.cli.tables import formats_table

    show_table(formats_table(Path(result.reference), result.models))
    for model in result.models:
        if model.engine is not None:
            name = Path(model.engine_path).name
            say(f"engine  {result.latest}/{name}, {model.engine.engine.bytes / 1e3:,.0f} kB")
    for line in result.notes:
        say(f"note    {line}")
    made = [run.name for run in result.stages if not run.reused]
    say(f"stages  {len(result.stages)}, done anew: {', '.join(made) or 'none'}")
    say(f"report  {result.latest}/report.html")
    if result.release:
        say(f"bundle  {result.release}")
    failed = [m for m in result.models if not m.drift.verdict.passed]
    if failed:
        say(f"verdict  FAIL: {failed[0].drift.verdict.headline}")
    else:
        names = ", ".join(f"{result.latest}/{Path(m.conversion.model).name}" for m in result.models)
        say(f"verdict  pass: {names}")
