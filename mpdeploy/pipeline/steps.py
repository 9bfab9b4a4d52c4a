"""Steps of the road that an export and the pipeline share."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from mpdeploy.conversion.record import ConversionResult
from mpdeploy.pipeline.record import Exported
from mpdeploy.pipeline.reference import Reference
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.records import load
from mpdeploy.report.compose import plan_table as rows_of
from mpdeploy.report.environment import environment
from mpdeploy.report.record import EngineRow, Fact, PlanTable, Report
from mpdeploy.runtime.doubts import DOUBT


def plan_table(conversion: ConversionResult) -> PlanTable:
    """Return what a conversion's plan keeps in FP32, as rows for a report."""
    return rows_of(load(PrecisionPlan, Path(conversion.plan)), conversion.model)


def notes_on(reference: Reference, models: Iterable[Exported]) -> tuple[str, ...]:
    """Return what a person should know of the source and of the data."""
    doubts = (note for model in models for note in model.drift.notes if note.startswith(DOUBT))
    return tuple(dict.fromkeys((*reference.notes, *doubts)))


def report_on(reference: Reference, models: tuple[Exported, ...], commands: tuple[str, ...]) -> Report:
    """Return the report on all models of an export."""
    engines = tuple(
        EngineRow(
            Path(m.engine_path).name,
            Path(m.conversion.model).name,
            m.engine.engine.bytes,
            tuple(map(str, m.engine.capabilities)),
        )
        for m in models
        if m.engine is not None
    )
    return Report(
        title=f"{reference.title}: {', '.join(m.precision.value.upper() for m in models)} against FP32",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        drifts=tuple(m.drift for m in models),
        facts=(*reference.facts, *(Fact("note", note) for note in reference.notes)),
        plans=tuple(plan_table(m.conversion) for m in models if m.conversion.plan),
        engines=engines,
        commands=commands,
        environment=environment(),
    )
