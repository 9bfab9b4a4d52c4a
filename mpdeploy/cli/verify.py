"""`mpdeploy verify`: a candidate's drift against its reference, and a verdict."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mpdeploy.cli.console import show as show_drawn
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.progress import note, track
from mpdeploy.cli.torch_options import torch_options
from mpdeploy.cli.words import Word, timeout_option
from mpdeploy.errors import UsageError

if TYPE_CHECKING:
    from mpdeploy.report.record import Report
    from mpdeploy.runtime.feeds import Feeds
    from mpdeploy.runtime.runner import Runner
    from mpdeploy.source.given import Given

_RUNTIMES = ("auto", "emulator", "onnxruntime", "openvino", "tensorrt", "ort-cuda", "ort-tensorrt", "ort-rtx")
_ARITHMETIC = ("chunked", "half", "tf32", "fp8e4m3", "fp8e5m2")
_FILE = click.Path(path_type=Path)


@click.command(
    epilog="Exit code 0: within budget; 1: over budget.  A model with FP16 or BF16 tensors runs with every tensor "
    "really rounded, on any machine: ONNX Runtime's own CPU run would hide overflow and underflow.  An mpdeploy.toml "
    "in the current folder may set budget, tasks and baseline in its table [verify], and budgets by format in "
    "[verify.fp16] and [verify.bf16]; metrics, which are code, count only in a file named with --settings."
)
@click.argument("reference", type=_FILE)
@click.argument("candidate", type=_FILE)
@click.option(
    "--data",
    required=True,
    metavar="D",
    help="One .npz file (keys are input names), a folder of them (one feed each), or module.py:callable that yields "
    "dicts of arrays.  A key 'labels' holds the true classes, a key 'targets' other true values.",
)
@click.option(
    "--budget",
    metavar="LIMITS",
    help="As in cosine>=0.999,logits:top1>=0.995,score.map>=0.5 [default: by the candidate's format].",
)
@click.option("--baseline", type=_FILE, help="An earlier report.json: fail if the drift grew since.")
@click.option(
    "--layers",
    is_flag=True,
    help="Measure every value along the graph, name the nodes to blame, and try a --keep-fp32 list that repairs it.",
)
@click.option("--no-noise", is_flag=True, help="Do not measure the reference's own noise first.")
@click.option("--torch", "checkpoint", type=_FILE, help="What the reference was exported from: counts in its noise.")
@click.option(
    "--task",
    "tasks",
    multiple=True,
    metavar="TASK",
    help="detection:OUTPUT, detection:boxes=B,scores=S,classes=C, or masks:OUTPUT[@THRESHOLD].",
)
@click.option("--metric", "metrics", multiple=True, metavar="M", help="A metric of your own: module.py:callable.")
@click.option("--runtime", type=Word(_RUNTIMES), default="auto", show_default=True, help="What runs the candidate.")
@click.option(
    "--emulate",
    type=Word(_ARITHMETIC),
    help="What if: round running totals of the candidate's low sums after every 128 (chunked) or 16 (half) terms, or "
    "operands of its FP32 matrix products to TF32 or FP8.",
)
@click.option("--ignore-labels", is_flag=True, help="Ignore the labels and targets in the data.")
@click.option(
    "--settings",
    "named",
    type=_FILE,
    help="A TOML file with budget, tasks, metrics, baseline [default: mpdeploy.toml, if it is here].",
)
@click.option(
    "--force", is_flag=True, help="Accept a run that is no evidence, and a reference coarser than the candidate."
)
@click.option("--report", "folder", type=_FILE, help="Write report.html and report.json here.")
@click.option("--junit", type=_FILE, help="Write JUnit XML for a CI server.")
@click.option("--markdown", type=_FILE, help="Write a summary for a pull request.")
@timeout_option
@torch_options
@result_options
def command(
    reference: Path,
    candidate: Path,
    data: str,
    budget: str | None,
    baseline: Path | None,
    layers: bool,
    no_noise: bool,
    checkpoint: Path | None,
    tasks: tuple[str, ...],
    metrics: tuple[str, ...],
    runtime: str,
    emulate: str | None,
    ignore_labels: bool,
    named: Path | None,
    force: bool,
    folder: Path | None,
    junit: Path | None,
    markdown: Path | None,
    timeout: float | None,
    given: "Given",
) -> Outcome:
    """Measure how far CANDIDATE drifts from REFERENCE, and say whether that is within budget.

    REFERENCE is an ONNX model, or a torch model in any form that export takes.
    """
    from mpdeploy.conversion.api import plan_path_of
    from mpdeploy.numerics.budget import parse_budget
    from mpdeploy.report.compose import composed
    from mpdeploy.report.write import report_files
    from mpdeploy.runtime.apart import require_apart
    from mpdeploy.runtime.feeds import open_feeds
    from mpdeploy.session.compared import ARITHMETIC, subject_in
    from mpdeploy.verification.api import verify
    from mpdeploy.verification.settings import choose_settings
    from mpdeploy.verification.subject import emulated
    from mpdeploy.verification.tasks import Scoring

    settings = choose_settings(named, tasks=tasks, metrics=metrics, baseline=baseline)
    feeds = open_feeds(data)
    scoring = Scoring(settings.tasks, settings.metrics, labels=not ignore_labels)
    require_apart(
        (*(report_files(folder) if folder else ()), *(path for path in (junit, markdown) if path)),
        models=(reference, candidate, checkpoint, plan_path_of(candidate)),
        others=(feeds, settings.baseline, settings.path, given.recipe, given.factory, *scoring.metrics),
    )
    if emulate is not None and runtime != "auto":
        raise UsageError("--emulate is for the emulator", remedy="leave --runtime out")
    theirs = (
        subject_in(candidate, runtime, timeout=timeout)
        if emulate is None
        else emulated(candidate, ARITHMETIC[emulate], timeout=timeout)
    )
    drift = verify(
        subject_in(reference, given=given, data=feeds, timeout=timeout),
        theirs,
        feeds.through(lambda stream: track(stream, "verify", feeds.count)),
        parse_budget(budget) if budget is not None else settings,
        noise=not no_noise,
        layers=layers,
        scoring=scoring,
        baseline=settings.baseline,
        witnesses=_witnesses(checkpoint, given, feeds, timeout),
        force=force,
    )
    report = composed(drift, theirs.plan, feeds, (shlex.join(["mpdeploy", *sys.argv[1:]]),))
    _write(report, folder, junit, markdown)

    def show() -> None:
        from mpdeploy.report.terminal import terminal

        show_drawn(terminal(report))

    return Outcome(drift, show, exit_code=0 if drift.verdict.passed else 1)


def _witnesses(checkpoint: Path | None, given: "Given", feeds: "Feeds", timeout: float | None) -> "dict[str, Runner]":
    if checkpoint is None:
        return {}
    from mpdeploy.session.opening import Runtime, open_runner

    return {"in torch": open_runner(checkpoint, Runtime.TORCH, given=given, data=feeds, timeout=timeout)}


def _write(report: "Report", folder: Path | None, junit: Path | None, markdown: Path | None) -> None:
    from mpdeploy.report.write import write_junit, write_markdown, write_report

    if folder is not None:
        html, _ = write_report(report, folder)
        note(f"report: {html}")
    if junit is not None:
        write_junit(report, junit)
    if markdown is not None:
        write_markdown(report, markdown)
