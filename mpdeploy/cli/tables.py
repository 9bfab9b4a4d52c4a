"""Tables that more than one command or script prints."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mpdeploy.report.words import decibels, error, share, size

if TYPE_CHECKING:
    from rich.table import Table

    from mpdeploy.numerics.drift import OutputDrift
    from mpdeploy.numerics.targets import TargetErrors
    from mpdeploy.pipeline import Exported


def formats_table(reference_path: Path, models: "tuple[Exported, ...]") -> "Table":
    """Return one row for each format: quality on the right answers, agreement with FP32, worst drift, size, verdict.

    A column that nothing is known of is left out.
    """
    from rich.table import Table

    from mpdeploy.graph.io import files_of

    weight = sum(file.stat().st_size for file in files_of(reference_path))
    columns = {
        "format": ["fp32", *(m.precision.value for m in models)],
        **_quality(models),
        "worst drift": ["", *(error(o.worst_sample_error) if (o := _worst(m)) else "" for m in models)],
        "file": [size(weight), *(size(m.conversion.model_bytes) for m in models)],
        "verdict": ["reference", *("pass" if m.drift.verdict.passed else "FAIL" for m in models)],
    }
    shown = {title: cells for title, cells in columns.items() if any(cells)}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in shown:
        table.add_column(title, no_wrap=True)
    for row in zip(*shown.values(), strict=True):
        table.add_row(*row)
    return table


def _quality(models: "tuple[Exported, ...]") -> dict[str, list[str]]:
    """Columns of what outputs are worth: the reference's cell, then one for each model; empty where unknown."""
    return {
        "accuracy": _cells(models, lambda o: o.accuracy_reference, lambda o: o.accuracy_candidate, share),
        "PSNR": _cells(
            models,
            _against_targets(lambda errors: errors.reference_psnr),
            _against_targets(lambda errors: errors.candidate_psnr),
            lambda value: decibels(value, 2),
        ),
        "mean error": _cells(
            models,
            _against_targets(lambda errors: errors.reference_mae),
            _against_targets(lambda errors: errors.candidate_mae),
            error,
        ),
        "top-1 as FP32": _cells(models, lambda o: None, lambda o: o.top1, share),
    }


Of = Callable[["OutputDrift"], float | None]


def _against_targets(read: "Callable[[TargetErrors], float | None]") -> Of:
    return lambda output: None if output.targets is None else read(output.targets)


def _cells(models: "tuple[Exported, ...]", reference: Of, candidate: Of, say: Callable[[float], str]) -> list[str]:
    found = [_first(model, candidate) for model in models]
    ours = next((value for model in models if (value := _first(model, reference)) is not None), None)
    return ["" if value is None else say(value) for value in (ours, *found)]


def _first(model: "Exported", of: Of) -> float | None:
    """The number of the worst output, or else of the first that has one."""
    outputs = sorted(model.drift.outputs, key=lambda o: o is not _worst(model))
    return next((value for output in outputs if (value := of(output)) is not None), None)


def _worst(model: "Exported") -> "OutputDrift | None":
    return max(model.drift.outputs, key=lambda o: o.worst_sample_error or 0.0, default=None)
