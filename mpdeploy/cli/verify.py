"""`mpdeploy verify`: a candidate's drift against its reference, and a verdict."""

import shlex
from pathlib import Path

import click

from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.progress import note, track


@click.command(
    epilog="Exit code 0: within budget; 1: over budget.  A model with FP16 or BF16 tensors runs with every tensor "
    "really rounded, on any machine: ONNX Runtime's own CPU run would hide overflow and underflow."
)
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option(
    "--data",
    required=True,
    metavar="D",
    help="One .npz file (keys are input names), a folder of them (one feed each), or module.py:callable that yields "
    "dicts of arrays.  A key 'labels' holds the true classes.",
)
@click.option(
    "--budget",
    metavar="LIMITS",
    help="As in cosine>=0.999,logits:top1>=0.995 [default: by the candidate's format].",
)
@click.option("--report", "folder", type=click.Path(path_type=Path), help="Write report.html and report.json here.")
@result_options
def command(reference: Path, candidate: Path, data: str, budget: str | None, folder: Path | None) -> Outcome:
    """Measure how far CANDIDATE drifts from REFERENCE, and say whether that is within budget."""
    from mpdeploy.report.record import report_of
    from mpdeploy.report.write import write_report
    from mpdeploy.runtime.feeds import open_feeds
    from mpdeploy.verification.api import verify
    from mpdeploy.verification.budget import parse_budget

    limits = parse_budget(budget) if budget is not None else None
    feeds = open_feeds(data)
    watched = feeds.through(lambda stream: track(stream, "verify", feeds.count))
    drift = verify(reference, candidate, watched, limits)
    words = ["mpdeploy", "verify", str(reference), str(candidate), "--data", data]
    report = report_of(drift, (shlex.join(words + (["--budget", budget] if budget else [])),))
    if folder is not None:
        html, _ = write_report(report, folder)
        note(f"report: {html}")

    def show() -> None:
        from rich.console import Console

        from mpdeploy.report.terminal import terminal

        Console(highlight=False).print(terminal(report))

    return Outcome(drift, show, exit_code=0 if drift.verdict.passed else 1)
