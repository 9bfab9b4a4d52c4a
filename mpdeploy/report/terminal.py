"""The report on a terminal."""

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mpdeploy.numerics.drift import OutputDrift
from mpdeploy.numerics.targets import TargetErrors
from mpdeploy.report import words
from mpdeploy.report.inside_view import Inside
from mpdeploy.report.record import Report
from mpdeploy.report.view import Candidate, View, view_of
from mpdeploy.texts import one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_REASONS_SHOWN = 8
_COLUMNS = 76


def terminal(report: Report) -> "RenderableType":
    """Return the report as something that a rich console prints: tables, verdicts, reasons."""
    from rich.console import Group
    from rich.text import Text

    view = view_of(report)
    parts: list[RenderableType] = []
    if len(view.candidates) > 1:
        parts.append(_summary(view))
    for candidate in view.candidates:
        if len(view.candidates) == 1:
            parts.append(_outputs(candidate))
        parts.append(_verdict(candidate))
        parts += [Text(one_line(f"  note: {note}"), style="dim") for note in candidate.drift.notes]
        if candidate.noise:
            parts.append(Text(one_line(f"  the reference's own noise: {candidate.noise}"), style="dim"))
        if candidate.inside is not None:
            parts += _inside(candidate.inside)
    return Group(*parts)


def _summary(view: View) -> "Table":
    table = _table("Candidate", "Format")
    columns = [("Accuracy", view.labelled), ("Top-1", True), ("Error", True), ("Size", True)]
    for title, shown in columns:
        if shown:
            table.add_column(title, justify="right", no_wrap=True)
    table.add_column("Verdict")
    if view.labelled:
        table.add_row("the reference", "FP32", view.reference_accuracy, "", "", view.reference_size, "", style="dim")
    for c in view.candidates:
        verdict = "[green]passed[/]" if c.drift.verdict.passed else "[red]failed[/]"
        accuracy = [c.accuracy] if view.labelled else []
        table.add_row(_plain(c.name), c.format, *accuracy, c.top1, c.worst, c.size, verdict)
    return table


def _outputs(candidate: Candidate) -> "Table":
    outputs = candidate.drift.outputs
    return _one_output(outputs[0]) if len(outputs) == 1 else _many_outputs(outputs)


def _one_output(o: OutputDrift) -> "Table":
    table = _table("Metric")
    table.add_column(_plain(o.name), justify="right")
    rows = [
        ("cosine", words.cosine(o.cosine)),
        ("norm-relative error", words.error(o.norm_relative)),
        ("worst sample's error", words.error(o.worst_sample_error)),
        ("signal to noise", words.decibels(o.sqnr_db)),
        ("largest error", words.error(o.max_abs)),
        ("mean error", words.error(o.mean_abs)),
        ("worst ulp", words.error(o.worst_ulp)),
        ("top-1 agreement", words.share(o.top1)),
        ("top-5 agreement", words.share(o.top5)),
        ("KL divergence", words.error(o.divergence)),
        ("same nearest neighbour", words.share(o.retrieval)),
        ("exact match", words.share(o.match) if o.exact else words.NONE),
        ("accuracy, reference", words.share(o.accuracy_reference)),
        ("accuracy, candidate", words.share(o.accuracy_candidate)),
        ("lost and gained", _mcnemar(o)),
        *_target_rows(o.targets),
        ("NaN and infinite", f"{o.candidate_nan} and {o.candidate_inf}" if o.candidate_nan or o.candidate_inf else "0"),
    ]
    for label, value in rows:
        if value != words.NONE:
            table.add_row(label, value)
    return table


def _many_outputs(outputs: Sequence[OutputDrift]) -> "Table":
    table = _table("Output")
    for title in ("Cosine", "Norm-relative", "Worst sample", "Top-1", "NaN", "Inf"):
        table.add_column(title, justify="right", no_wrap=True)
    for o in outputs:
        table.add_row(
            _plain(o.name),
            words.share(o.match) if o.exact else words.cosine(o.cosine),
            "exact match" if o.exact else words.error(o.norm_relative),
            words.error(o.worst_sample_error),
            words.share(o.top1),
            str(o.candidate_nan),
            str(o.candidate_inf),
        )
    return table


def _verdict(candidate: Candidate) -> "RenderableType":
    from rich.text import Text

    verdict, drift = candidate.drift.verdict, candidate.drift
    text = Text("PASSED  " if verdict.passed else "FAILED  ", style="bold green" if verdict.passed else "bold red")
    text.append(one_line(candidate.name), style="bold")
    text.append(one_line(f"  {candidate.samples}, budget {drift.budget.origin}"), style="dim")
    for reason in verdict.reasons[:_REASONS_SHOWN]:
        text.append(f"\n  {reason.code}  ", style="red").append(one_line(reason.text), style="default")
    if len(verdict.reasons) > _REASONS_SHOWN:
        text.append(f"\n  and {len(verdict.reasons) - _REASONS_SHOWN} more", style="default")
    return text


def _mcnemar(o: OutputDrift) -> str:
    if o.accuracy is None:
        return words.NONE
    return f"{o.accuracy.lost} and {o.accuracy.gained}, p = {o.accuracy.p_value:.2g}"


def _target_rows(errors: TargetErrors | None) -> list[tuple[str, str]]:
    if errors is None:
        return []
    return [
        ("error against targets, reference", words.error(errors.reference_mae)),
        ("error against targets, candidate", words.error(errors.candidate_mae)),
        ("PSNR, reference", words.decibels(errors.reference_psnr, 2)),
        ("PSNR, candidate", words.decibels(errors.candidate_psnr, 2)),
    ]


def _inside(inside: Inside) -> "Iterator[RenderableType]":
    from rich.text import Text

    for remark in inside.remarks:
        yield Text(one_line(f"  {remark}"))
    if inside.culprits:
        table = _table("Node", "Does", "Evidence", "Plan")
        for row in inside.culprits[:_REASONS_SHOWN]:
            style = "red" if row.severe else ""
            table.add_row(_plain(row.node), Text(row.kind, style=style), _plain(row.text), row.code)
        yield Text("")
        yield table
    if inside.repair:
        yield Text(f"\n{inside.repair}", style="green" if inside.repaired else "red")
        yield Text("\n".join(map(one_line, _lines(inside.command))))


def _lines(command: str) -> Iterator[str]:
    """A command in lines that a shell takes as one."""
    line = " "
    for word in shlex.split(command):
        longer = f"{line} {shlex.quote(word)}"
        if len(longer) > _COLUMNS and line.strip():
            yield f"{line} \\"
            longer = f"     {shlex.quote(word)}"
        line = longer
    yield line


def _table(*titles: str) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    return table


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(one_line(text))
