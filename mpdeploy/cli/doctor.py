"""`mpdeploy doctor`: what works here, really tried, and what to install for the rest."""

from dataclasses import dataclass

import click

from mpdeploy.cli.console import add_row, plain_table, say, show
from mpdeploy.cli.doctor_checks import Finding, Status, all_checks
from mpdeploy.cli.machine import Machine, describe_machine
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.progress import note, track
from mpdeploy.errors import DependencyError

_COLOURS = {Status.WORKS: "green", Status.MISSING: "yellow", Status.BROKEN: "red"}
_WHOLE_LINES = 240  # columns


@dataclass(frozen=True)
class DoctorReport:
    """Everything that the doctor found."""

    version: str
    machine: Machine
    findings: tuple[Finding, ...]
    schema: str = "mpdeploy.doctor/1"


@click.command()
@result_options
def command() -> Outcome:
    """Say which runtimes, formats and engine back ends work here, and what to install for the others.

    Each of them computes a tiny model.  The exit code is 0 unless something that mpdeploy requires is broken (4).
    """
    from mpdeploy import __version__

    checks = list(all_checks())
    findings = tuple(check.finding() for check in track(checks, "trying", total=len(checks)))
    report = DoctorReport(__version__, describe_machine(), findings)
    bad = [finding.name for finding in findings if finding.required and finding.status is not Status.WORKS]
    if bad:
        note(f"mpdeploy: required and not working: {', '.join(bad)}")
    return Outcome(report, lambda: _show(report), DependencyError.exit_code if bad else 0)


def _show(report: DoctorReport) -> None:
    from rich.text import Text

    machine = report.machine
    say(f"mpdeploy {report.version} · Python {machine.python} · {machine.system}")
    say(f"CPU  {machine.cpu}, {machine.cores} cores; {', '.join(machine.cpu_features) or 'no low-precision features'}")
    for gpu in machine.gpus:
        say(f"GPU  {gpu.name}, SM {gpu.capability}, {gpu.memory / 2**30:.0f} GiB")
    if not machine.gpus:
        say("GPU  none")
    table = plain_table()
    for title in ("library", "for", "status", "version", "formats"):
        table.add_column(title, no_wrap=True)
    table.add_column("notes", overflow="fold")
    for finding in report.findings:
        remarks = "; ".join(part for part in (finding.detail, finding.remedy) if part)
        status = Text(finding.status.value, style=_COLOURS[finding.status])
        formats = " ".join(finding.formats)
        add_row(table, (finding.name, finding.role, status, finding.version, formats, remarks))
    show(table, width=_WHOLE_LINES)  # only a terminal has a width to fit; elsewhere lines stay whole
