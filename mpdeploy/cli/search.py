"""`mpdeploy search`: the most in the low format that a budget allows."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpdeploy.cli.console import say
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.plan_options import plan_options
from mpdeploy.cli.progress import note
from mpdeploy.cli.words import Word, timeout_option

if TYPE_CHECKING:
    from mpdeploy.runtime.feeds import Feeds
    from mpdeploy.searching.record import SearchResult, Step
    from mpdeploy.verification.tasks import Scoring

_SHOWN = 8  # nodes that are named on the terminal; the plan has all


@click.command(
    "search",
    epilog="Exit code 1: no plan with anything in the low format is within the budget; nothing is written.",
)
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where to write the model.")
@click.option("--precision", required=True, type=Word(["fp16", "bf16"]), help="The low format.")
@click.option("--data", required=True, metavar="D", help="Feeds: FILE.npz, a folder of them, or module.py:callable.")
@click.option("--budget", metavar="LIMITS", help="As for verify [default: by the format, as in verify].")
@click.option("--policy", help="The rules to start from: balanced (default), autocast, safe or fast.")
@plan_options
@click.option("--task", "tasks", multiple=True, metavar="TASK", help="Judge detections or masks, as in verify.")
@click.option("--metric", "metrics", multiple=True, metavar="M", help="A metric of your own: module.py:callable.")
@click.option("--ignore-labels", is_flag=True, help="Ignore the labels and targets in the data.")
@click.option(
    "--settings",
    "named",
    type=click.Path(path_type=Path),
    help="As for verify [default: mpdeploy.toml, if here].",
)
@click.option(
    "--trials", type=int, default=40, show_default=True, help="The most plans to try from each starting point."
)
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Write the found model's drift report here.")
@timeout_option
@result_options
def command(
    source: Path,
    output: Path,
    precision: str,
    data: str,
    budget: str | None,
    policy: str | None,
    keep_fp32: tuple[str, ...],
    op_fp32: tuple[str, ...],
    low_io: bool,
    target: str | None,
    tasks: tuple[str, ...],
    metrics: tuple[str, ...],
    ignore_labels: bool,
    named: Path | None,
    trials: int,
    folder: Path | None,
    timeout: float | None,
) -> Outcome:
    """Convert the FP32 model SOURCE with as much in the low format as the budget allows.

    Plans are tried on the data under true rounding.  What drifts over the budget goes back to FP32; what rules keep in
    FP32 for caution is lowered where the budget holds.  The plan beside the model says of each node what was found.
    """
    from mpdeploy.conversion.api import plan_path_of
    from mpdeploy.report.write import report_files
    from mpdeploy.runtime.apart import require_apart
    from mpdeploy.runtime.feeds import open_feeds
    from mpdeploy.searching.api import search
    from mpdeploy.verification.settings import choose_settings
    from mpdeploy.verification.tasks import Scoring

    settings = choose_settings(named, tasks=tasks, metrics=metrics)
    feeds, scoring = open_feeds(data), Scoring(settings.tasks, settings.metrics, labels=not ignore_labels)
    if folder is not None:
        written = (*report_files(folder), output, plan_path_of(output))
        require_apart(written, models=(source,), others=(feeds, *scoring.metrics, settings.path))
    result = search(
        source,
        output,
        precision=precision,
        data=feeds,
        budget=budget if budget is not None else settings,
        policy=policy,
        keep_fp32=keep_fp32,
        op_fp32=op_fp32,
        low_io=low_io,
        target=target,
        scoring=scoring,
        trials=trials,
        progress=_tell,
        timeout=timeout,
    )
    if folder is not None:
        _report(result, source, feeds, scoring, folder)
    return Outcome(result, lambda: _show(result))


def _tell(step: "Step") -> None:
    drift = "not finite" if step.error is None else f"{step.error:.3g}"
    arithmetic = "" if step.low_flops is None else f", {step.low_flops:.0%} of the arithmetic low"
    note(f"{'holds ' if step.passed else 'breaks'}  drift {drift}{arithmetic}: {step.what}")


def _report(result: "SearchResult", source: Path, feeds: "Feeds", scoring: "Scoring", folder: Path) -> None:
    from mpdeploy.report.compose import composed
    from mpdeploy.report.write import write_report
    from mpdeploy.verification.api import verify
    from mpdeploy.verification.subject import opened

    made = opened(Path(result.conversion.model))
    drift = verify(source, made, feeds, result.budget, scoring=scoring)
    html, _ = write_report(composed(drift, made.plan, feeds, (shlex.join(["mpdeploy", *sys.argv[1:]]),)), folder)
    note(f"report: {html}")


def _show(result: "SearchResult") -> None:
    made, first, last = result.conversion, result.steps[0], result.found
    say(f"{made.model}: {made.precision.value}, {made.model_bytes / max(made.source_bytes, 1):.2f} of the FP32 file")
    say(f"  by rules   {_facts(first)}")
    say(f"  searched   {_facts(last)}, {made.casts} casts")
    for nodes, what in ((result.kept, "kept in FP32"), (result.freed, "lowered against a rule")):
        if nodes:
            more = f", … ({len(nodes)} in all)" if len(nodes) > _SHOWN else ""
            say(f"  {what}: {', '.join(nodes[:_SHOWN])}{more}")
    if not result.complete:
        say(f"  the trials ran out: more could perhaps be lowered with --trials above {len(result.steps)}")
    say(f"  {len(result.steps)} plans tried in {result.seconds:.1f} s; plan: {made.plan}")
    say(f"PASSED  {result.verdict.headline} ({result.samples} samples of {result.data}, {result.run.precision})")


def _facts(step: "Step") -> str:
    arithmetic = "" if step.low_flops is None else f"{step.low_flops:.1%} of the matrix arithmetic and "
    drift = "not finite" if step.error is None else f"{step.error:.3g}"
    return f"low: {arithmetic}{step.low} decisions, drift {drift}, {'within' if step.passed else 'over'} budget"
