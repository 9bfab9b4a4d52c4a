"""`mpdeploy export`: from a checkpoint to verified models, an engine and a report."""

import contextlib
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from mpdeploy.cli.console import say
from mpdeploy.cli.console import show as show_table
from mpdeploy.cli.outcome import OUTPUT_OPTIONS, Outcome, result_options
from mpdeploy.cli.plan_options import plan_options
from mpdeploy.cli.progress import note, track
from mpdeploy.cli.torch_options import torch_options
from mpdeploy.cli.words import Word, timeout_option

if TYPE_CHECKING:
    from mpdeploy.pipeline import ExportResult
    from mpdeploy.runtime.feeds import Feeds
    from mpdeploy.source.given import Given


@click.command(
    "export",
    epilog="MODEL may be a checkpoint of 'mpdeploy train'; a state dict (.pt .pth .safetensors) with --model; a "
    "TorchScript archive; a torch.export program (.pt2); a Hugging Face folder; an ONNX file; with --trust a pickled "
    "module.",
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder to write to  [export/ beside MODEL].")
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    type=Word(["fp16", "bf16"]),
    help="Low format; may be given twice  [fp16].",
)
@click.option("--data", metavar="D", help="Feeds; by default those that training left beside the checkpoint.")
@click.option("--budget", metavar="LIMITS", help="As in cosine>=0.999,top1>=0.995  [by format].")
@click.option(
    "--engine",
    type=Word(["rtx", "tensorrt", "none"]),
    default="none",
    show_default=True,
    help="Build an engine.",
)
@click.option("--policy", help="autocast, safe (default without data), balanced (default with data), or fast.")
@plan_options
@click.option("--ignore-labels", is_flag=True, help="Ignore the labels and targets in the data.")
@timeout_option
@torch_options
@result_options
def command(
    model: Path,
    output: Path | None,
    precisions: tuple[str, ...],
    data: str | None,
    budget: str | None,
    engine: str,
    policy: str | None,
    keep_fp32: tuple[str, ...],
    op_fp32: tuple[str, ...],
    low_io: bool,
    target: str | None,
    ignore_labels: bool,
    timeout: float | None,
    given: "Given",
) -> Outcome:
    """Export MODEL, in whatever form it comes, to verified FP16 or BF16 ONNX.

    Writes model.onnx (FP32, held against torch), the converted models with their plans, the engine if asked for,
    report.html, report.json and manifest.json.  Exit code 1 if a model's drift is over budget; everything is kept
    for looking.
    """
    from mpdeploy.source.missing import require_complete

    require_complete(model, given, with_data=data is not None)  # before torch is imported

    from mpdeploy import pipeline
    from mpdeploy.numerics.budget import parse_budget
    from mpdeploy.numerics.formats import Format

    formats = tuple(Format(p) for p in dict.fromkeys(precisions or ("fp16",)))
    wishes = pipeline.Wishes(
        precisions=formats,
        timeout=timeout,
        policy=policy,
        keep_fp32=keep_fp32,
        op_fp32=op_fp32,
        low_io=low_io,
        target=target,
        data=data,
        budget=parse_budget(budget) if budget is not None else None,
        labels=not ignore_labels,
        engines=() if engine == "none" else tuple((f, engine) for f in formats),
    )
    result = pipeline.export(
        model,
        output or model.parent / "export",
        wishes,
        given=given,
        stage=told,
        watch=watched,
        commands=(_spelled(),),
    )
    return Outcome(result, lambda: show(result), exit_code=0 if result.passed else 1)


def _spelled() -> str:
    """The command as a person would type it again: without what only shapes its output."""
    context = click.get_current_context()
    words = ["mpdeploy", "export"]
    for parameter in context.command.params:
        name = parameter.name or ""
        value = context.params.get(name)
        asked = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if not asked or value is None or name in OUTPUT_OPTIONS:
            continue
        if isinstance(parameter, click.Argument):
            words.append(str(value))
        elif value is True:
            words.append(parameter.opts[-1])
        else:
            words += [w for v in (value if isinstance(value, tuple) else (value,)) for w in (parameter.opts[0], str(v))]
    return shlex.join(words)


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
    from mpdeploy.cli.tables import formats_table

    show_table(formats_table(Path(result.reference), result.models))
    for model in result.models:
        if model.engine is not None:
            say(f"engine  {model.engine_path}, {model.engine.engine.bytes / 1e3:,.0f} kB")
    for line in result.notes:
        say(f"note    {line}")
    say(f"report  {result.report_html}")
    failed = [m for m in result.models if not m.drift.verdict.passed]
    if failed:
        say(f"verdict  FAIL: {failed[0].drift.verdict.headline}")
    else:
        say("verdict  pass: " + ", ".join(m.conversion.model for m in result.models))
