"""`mpdeploy run`: a model over data."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpdeploy.cli.console import say
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.progress import note, track
from mpdeploy.cli.torch_options import torch_options
from mpdeploy.cli.words import Word, timeout_option

if TYPE_CHECKING:
    from mpdeploy.source.given import Given

_RUNTIMES = ("auto", "emulator", "onnxruntime", "openvino", "tensorrt", "torch")


@click.command(
    epilog="With auto the numbers are those of the file's own formats on any machine: half-precision ONNX models run "
    "under true rounding, which ONNX Runtime's CPU provider would leave out."
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--data", required=True, metavar="D", help="FILE.npz, a folder of them, or module.py:callable.")
@click.option("--runtime", type=Word(_RUNTIMES), default="auto", show_default=True, help="What runs the model.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="FILE.npz for one feed, else a folder.")
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads [default: one per core].")
@timeout_option
@torch_options
@result_options
def command(
    model: Path, data: str, runtime: str, output: Path | None, threads: int, timeout: float | None, given: "Given"
) -> Outcome:
    """Run MODEL (an ONNX model, an engine, or what export takes) over data and say what comes out."""
    from mpdeploy.runtime.feeds import open_feeds
    from mpdeploy.session.opening import Runtime, open_runner
    from mpdeploy.session.outputs import run_over

    feeds = open_feeds(data)
    runner = open_runner(model, Runtime(runtime), threads=threads, given=given, data=feeds, timeout=timeout)
    watched = feeds.through(lambda stream: track(stream, f"running {model.name}", feeds.count))
    report = run_over(runner, str(model), watched, output)

    def show() -> None:
        ran = report.execution
        say(f"{model}: {report.feeds} feeds in {ran.runtime} {ran.version} on {ran.provider}, {ran.precision}")
        for facts in report.outputs:
            shape = ",".join(map(str, facts.shape))
            line = f"  {facts.name} {facts.dtype}[{shape}]"
            if facts.mean is not None:
                line += f"  from {facts.low:.6g} to {facts.high:.6g}, mean {facts.mean:.6g}"
            if facts.nan or facts.inf:
                line += f"  {facts.nan} NaN, {facts.inf} infinite"
            say(line)
        for text in (ran.note, *report.notes):
            if text:
                note(f"note: {text}")
        if report.written:
            say(f"  outputs: {report.written}")

    return Outcome(report, show)
