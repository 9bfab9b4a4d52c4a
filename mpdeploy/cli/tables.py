"""Tables that more than one command or script prints."""

from pathlib import Path
from typing import TYPE_CHECKING

from mpdeploy.report.words import error, share, size

if TYPE_CHECKING:
    from rich.table import Table

    from mpdeploy.numerics.drift import OutputDrift
    from mpdeploy.pipeline import Exported


def formats_table(reference_path: Path, models: "tuple[Exported, ...]") -> "Table":
    """Return one row for each format: accuracy on labels, agreement with FP32, worst drift, file size, verdict."""
    from rich.table import Table

    from mpdeploy.graph.io import files_of

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("format", "accuracy", "top-1 as FP32", "worst drift", "file", "verdict"):
        table.add_column(title, no_wrap=True)
    outputs = [_worst(m.drift.outputs) for m in models]
    reference = next((o.accuracy_reference for o in outputs if o is not None and o.labelled), None)
    weight = sum(file.stat().st_size for file in files_of(reference_path))
    table.add_row("fp32", _share(reference), "", "", size(weight), "reference")
    for model, worst in zip(models, outputs, strict=True):
        table.add_row(
            model.precision.value,
            _share(worst.accuracy_candidate if worst else None),
            _share(worst.top1 if worst else None),
            error(worst.worst_sample_error) if worst else "",
            size(model.conversion.model_bytes),
            "pass" if model.drift.verdict.passed else "FAIL",
        )
    return table


def _worst(outputs: "tuple[OutputDrift, ...]") -> "OutputDrift | None":
    return max(outputs, key=lambda o: o.worst_sample_error or 0.0, default=None)


def _share(value: float | None) -> str:
    return "" if value is None else share(value)
