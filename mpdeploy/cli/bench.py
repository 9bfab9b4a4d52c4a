"""`mpdeploy bench`: models side by side."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpdeploy.cli.console import add_row, plain_table, say, warn
from mpdeploy.cli.console import show as show_table
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.progress import meter, note
from mpdeploy.cli.torch_options import torch_options
from mpdeploy.cli.words import Word, timeout_option
from mpdeploy.errors import UsageError

if TYPE_CHECKING:
    from mpdeploy.source.given import Given

_LONGEST = 86400.0  # seconds in a day
_RUNTIMES = ("emulator", "onnxruntime", "openvino", "tensorrt", "torch")


def _seconds(context: click.Context, option: click.Parameter, value: float) -> float:
    if not 0 <= value <= _LONGEST:  # not so for NaN, which lies inside every click.FloatRange
        raise click.BadParameter(f"{value} is not in the range 0<=x<={_LONGEST:.0f}", context, option)
    return value


@click.command(
    epilog="Each contestant runs in a process of its own; they take turns in alternating order.  Ratios refer to the "
    "first FP32 model on ONNX Runtime.  A half-precision model whose runtime computes in another format is marked: "
    "its latency is no result.  A model that cannot run, or not with every batch size, does not stop the others: a "
    "line says why, and the exit code is that of its fault."
)
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--runtime",
    "runtimes",
    multiple=True,
    type=Word(_RUNTIMES),
    help="Every model on each of these that takes it  [default: the usual one for its format].",
)
@click.option("--data", metavar="D", help="Rows from FILE.npz, a folder, or module.py:callable  [default: made up].")
@click.option(
    "--batch",
    multiple=True,
    type=click.IntRange(min=1),
    help="Batch size; may be repeated  [default: that of the first model if it is fixed, else 1].",
)
@click.option("--dim", multiple=True, metavar="NAME=SIZE", help="Size of another dynamic axis of made-up inputs.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="How many times each model is timed."
)
@click.option("--seconds", type=float, callback=_seconds, default=1.0, show_default=True, help="Seconds per turn.")
@click.option(
    "--warmup", type=float, callback=_seconds, default=1.0, show_default=True, help="Seconds of warm-up before them."
)
@click.option("--threads", type=click.IntRange(min=0), default=0, help="CPU threads  [default: one per core].")
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Write bench.html, .svg and .json here.")
@timeout_option
@torch_options
@result_options
def command(
    models: tuple[Path, ...],
    runtimes: tuple[str, ...],
    data: str | None,
    batch: tuple[int, ...],
    dim: tuple[str, ...],
    rounds: int,
    seconds: float,
    warmup: float,
    threads: int,
    folder: Path | None,
    timeout: float | None,
    given: "Given",
) -> Outcome:
    """Time MODELS (ONNX models, engines, what export takes) side by side."""
    from mpdeploy.cli.machine import describe_machine
    from mpdeploy.runtime.apart import require_apart
    from mpdeploy.runtime.feeds import open_feeds
    from mpdeploy.session.bench import bench, contestants
    from mpdeploy.session.contest import BenchSettings
    from mpdeploy.session.opening import Runtime
    from mpdeploy.session.picture import bench_files, table_cells, unusable_text, write_bench

    settings = BenchSettings(
        tuple(dict.fromkeys(batch)), rounds, seconds, warmup, threads, dict(map(_size, dim)), timeout
    )
    if folder is not None:
        require_apart(bench_files(folder), models=models, others=(data, given.recipe, given.factory))
    entrants = contestants(models, [Runtime(word) for word in runtimes], given)
    machine = describe_machine()
    described = f"{machine.cpu}, {machine.cores} cores, {', '.join(machine.cpu_features)}"
    with meter("benchmark") as progress:
        report = bench(
            entrants,
            settings,
            data=None if data is None else open_feeds(data),
            machine=described,
            progress=progress,
        )
    for left_out in report.unusable:
        warn(f"mpdeploy: {unusable_text(left_out)}")
    if folder is not None:
        note(f"report: {write_bench(report, folder)}")

    def show() -> None:
        table = plain_table()
        table.add_column("contestant", overflow="fold")
        for title in ("batch", "ms", "p95", "p99", "samples/s", "× fp32", "MB", "cold s", "drift"):
            table.add_column(title, justify="right", no_wrap=True)
        for row in report.rows:
            for timing in row.timings:
                add_row(table, table_cells(row, timing), style="dim" if row.caveat else None)
        show_table(table, width=200)
        for row in report.rows:
            if row.caveat:
                say(f"no result: {row.name}: {row.caveat}")
        if report.baseline is None:
            say("no ratios and no drift: no contestant is an FP32 model on ONNX Runtime")

    return Outcome(report, show, report.unusable[0].exit_code if report.unusable else 0)


def _size(word: str) -> tuple[str, int]:
    name, sign, size = word.partition("=")
    if not sign or not size.isdecimal() or not int(size):
        raise UsageError(f"not a size: {word!r}", where="--dim", remedy="write it as --dim sequence=128")
    return name, int(size)
