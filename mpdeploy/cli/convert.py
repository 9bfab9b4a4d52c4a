"""`mpdeploy convert`: an FP32 ONNX model to FP16 or BF16."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpdeploy.cli.console import say
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.plan_options import plan_options
from mpdeploy.cli.progress import track
from mpdeploy.cli.words import Word, timeout_option

if TYPE_CHECKING:
    from mpdeploy.conversion.record import ConversionResult
    from mpdeploy.plan.record import Trial


@click.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where to write the model.")
@click.option("--precision", required=True, type=Word(["fp16", "bf16"]), help="The low format.")
@click.option("--data", help="Feeds for measured ranges: FILE.npz, a folder of them, or module.py:callable.")
@click.option("--ranges", type=click.Path(path_type=Path), help="Ranges from training (ranges.json), without --data.")
@click.option("--policy", help="autocast, safe (default without data), balanced (default with data), or fast.")
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    help="Apply this plan instead of making one; --keep-fp32, --op-fp32 and --data go with it.",
)
@plan_options
@timeout_option
@result_options
def command(
    source: Path,
    output: Path,
    precision: str,
    data: str | None,
    ranges: Path | None,
    policy: str | None,
    plan: Path | None,
    keep_fp32: tuple[str, ...],
    op_fp32: tuple[str, ...],
    low_io: bool,
    target: str | None,
    timeout: float | None,
) -> Outcome:
    """Convert the FP32 model SOURCE (ONNX) to FP16 or BF16.

    The plan, with the reason for each operator's format, is written beside the model.
    """
    from mpdeploy.conversion.api import convert
    from mpdeploy.runtime.feeds import open_feeds

    feeds = open_feeds(data) if data is not None else None
    if feeds is not None:
        total, passes = feeds.count, iter(("measuring ranges", "running the FP32 model", "trying the plan"))
        feeds = feeds.through(lambda items: track(items, next(passes, "trying another plan"), total))
    result = convert(
        source,
        output,
        precision=precision,
        data=feeds,
        ranges=ranges,
        policy=policy,
        plan=plan,
        keep_fp32=keep_fp32,
        op_fp32=op_fp32,
        low_io=low_io,
        target=target,
        timeout=timeout,
    )

    return Outcome(result, lambda: _show(result))


def _show(result: "ConversionResult") -> None:
    trial = result.trial
    if trial is not None and not trial.within:
        say(f"OVER BUDGET  {trial.text}{f'; {trial.cause}' if trial.cause else ''}")
    if result.unchanged:
        say(f"{result.model}: unchanged; {result.notes[0]}")
        return
    ratio = result.model_bytes / max(result.source_bytes, 1)
    if result.idle:
        say(f"{result.model}: {result.idle}")
    else:
        say(f"{result.model}: {result.precision.value}, {ratio:.2f} of the FP32 file ({result.model_bytes:,} bytes)")
    flops = "" if result.low_flops is None else f"{result.low_flops:.1%} of the matrix arithmetic and "
    say(f"  low: {flops}{result.low_operators} of {_counted(result.operators, 'decision')}, policy {result.policy}")
    cast = f", {_counted(result.bytes_cast, 'byte')} cast in a run" if result.casts else ""
    say(f"  {_counted(result.casts, 'cast')} put in{cast}, opset {result.opset}")
    if result.weights_with_loss:
        lossy = _counted(result.weights_with_loss, "stored tensor")
        say(f"  {lossy} lost more than ordinary rounding: see the plan's ledger")
    if trial is not None:
        say(f"  {_words(trial)}")
    for note in result.notes:
        say(f"  note: {note}")
    say(f"  plan: {result.plan}")


def _words(trial: "Trial") -> str:
    feeds = _counted(trial.feeds, "feed")
    if trial.given is not None and trial.given > trial.feeds:
        feeds = f"{trial.feeds:,} of {_counted(trial.given, 'feed')} (as many as the FP32 model ran in the time for it)"
    drift = "not finite" if trial.drift is None else f"{trial.drift:.2g}"
    worst = f", worst on {trial.feed}" if trial.feed and trial.feeds > 1 else ""
    plans = f", {_counted(trial.plans, 'plan')} tried" if trial.plans > 1 else ""
    judged = "within" if trial.within else "OVER"
    return f"tried on {feeds}: {judged} budget ({trial.budget.partition(':')[0]}), drift {drift}{worst}{plans}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
