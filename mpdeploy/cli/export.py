"""`mpdeploy export`: from a checkpoint to verified models, an engine and a report."""

import contextlib
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.progress import note, track

if TYPE_CHECKING:
    from mpdeploy.pipeline import ExportResult
    from mpdeploy.runtime.feeds import Feeds


@click.command("export")
@click.argument("checkpoint", metavar="MODEL.pt", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write to  [export/ beside MODEL.pt].")
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=click.Choice(["fp16", "bf16"]),
    help="Low format; may be given twice  [fp16].",
)
@click.option("--data", metavar="D", help="Feeds; by default those that training left beside the checkpoint.")
@click.option("--budget", metavar="LIMITS", help="As in cosine>=0.999,top1>=0.995  [by format].")
@click.option(
    "--engine",
    type=click.Choice(["rtx", "tensorrt", "none"]),
    default="none",
    show_default=True,
    help="Build an engine.",
)
@click.option("--recipe", type=click.Path(path_type=Path), help="The recipe, if it does not lie in ./models/.")
@result_options
def command(
    checkpoint: Path,
    output: Path | None,
    precisions: tuple[str, ...],
    data: str | None,
    budget: str | None,
    engine: str,
    recipe: Path | None,
) -> Outcome:
    """Take MODEL.pt, a checkpoint of `mpdeploy train`, the whole road.

    Writes model.onnx (FP32), the converted models with their plans, the engine if asked for, report.html and
    report.json.  Exit code 1 if a model's drift is over budget; everything is kept for looking.
    """
    from mpdeploy import pipeline
    from mpdeploy.numerics.formats import Format
    from mpdeploy.verification.budget import parse_budget

    formats = tuple(Format(p) for p in dict.fromkeys(precisions or ("fp16",)))
    wishes = pipeline.Wishes(
        precisions=formats,
        data=data,
        budget=parse_budget(budget) if budget is not None else None,
        engines=() if engine == "none" else tuple((f, engine) for f in formats),
    )
    folder = output or checkpoint.parent / "export"
    words = ["mpdeploy", "export", str(checkpoint), *(["-o", str(output)] if output else [])]
    words += [w for p in precisions for w in ("--precision", p)]
    for flag, value in (("--data", data), ("--budget", budget), ("--recipe", recipe)):
        words += [flag, str(value)] if value is not None else []
    words += ["--engine", engine] if engine != "none" else []
    result = pipeline.export(
        checkpoint, folder, wishes, recipe=recipe, stage=told, watch=watched, commands=(shlex.join(words),)
    )
    return Outcome(result, lambda: show(result), exit_code=0 if result.passed else 1)


@contextlib.contextmanager
def told(name: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    started = time.monotonic()
    note(f"── {name}")
    yield
    note(f"   {time.monotonic() - started:.1f} s")


def watched(feeds: "Feeds", what: str) -> "Feeds":
    """Return the feeds with a progress bar around each pass."""
    return feeds.through(lambda items: track(items, what, feeds.count))


def show(result: "ExportResult") -> None:
    """Print the table of formats, and the line that a person acts on."""
    from rich.console import Console

    from mpdeploy.cli.tables import export_table

    console = Console(highlight=False)
    console.print(export_table(result))
    for model in result.models:
        if model.engine is not None:
            console.print(f"engine  {model.engine_path}, {model.engine.engine.bytes / 1e3:,.0f} kB", soft_wrap=True)
    console.print(f"report  {result.report_html}", soft_wrap=True)
    failed = [m for m in result.models if not m.drift.verdict.passed]
    if failed:
        console.print(f"verdict  FAIL: {failed[0].drift.verdict.headline}", soft_wrap=True)
    else:
        console.print("verdict  pass: " + ", ".join(m.conversion.model for m in result.models), soft_wrap=True)
