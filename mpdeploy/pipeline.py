"""The road from a checkpoint to verified models, an engine and a report, in one folder."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mpdeploy.conversion.api import convert
from mpdeploy.conversion.record import ConversionResult
from mpdeploy.engine.api import build
from mpdeploy.engine.backends import find_backend
from mpdeploy.engine.gpu import find_gpus
from mpdeploy.engine.options import BuildOptions, Profile, ShapeRange
from mpdeploy.engine.record import EngineRecord
from mpdeploy.graph import io
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.records import load
from mpdeploy.report.record import EngineRow, Fact, PlanRow, PlanTable, Report
from mpdeploy.report.write import write_report
from mpdeploy.runtime.choose import truthful_runner
from mpdeploy.runtime.feeds import Feeds, feeds_of, open_feeds
from mpdeploy.runtime.runner import input_specs
from mpdeploy.verification.api import verify
from mpdeploy.verification.budget import Budget
from mpdeploy.verification.record import DriftReport

if TYPE_CHECKING:
    from mpdeploy.source.loading import LoadedModule

REFERENCE = "model.onnx"
CALIBRATION, HELD_OUT = "calibration", "heldout"  # folders that training leaves beside a checkpoint

Stage = Callable[[str], AbstractContextManager[None]]
Watch = Callable[[Feeds, str], Feeds]


@dataclass(frozen=True)
class Exported:
    """One low-precision model of an export: its conversion, its drift, and its engine where one was asked for."""

    precision: Format
    conversion: ConversionResult
    drift: DriftReport
    engine: EngineRecord | None = None
    engine_path: str = ""


@dataclass(frozen=True)
class ExportResult:
    """All that an export wrote.  ``passed`` if every model is within its budget."""

    checkpoint: str
    reference: str
    torch_difference: float
    models: tuple[Exported, ...]
    report_html: str
    report_json: str
    passed: bool
    seconds: float
    schema: str = "mpdeploy.export/1"


@dataclass(frozen=True)
class Wishes:
    """What an export is asked for.

    ``data`` serves for ranges and for verification; without it the folders that training left beside the
    checkpoint do, and failing these the checkpoint's own examples.  ``engines`` maps a precision to the back end
    that builds from it.
    """

    precisions: tuple[Format, ...]
    data: str | None = None
    budget: Budget | None = None
    engines: tuple[tuple[Format, str], ...] = ()


def _quiet_stage(name: str) -> AbstractContextManager[None]:
    return nullcontext()


def _unwatched(feeds: Feeds, what: str) -> Feeds:
    return feeds


def export(
    checkpoint: Path,
    folder: Path,
    wishes: Wishes,
    *,
    recipe: Path | None = None,
    stage: Stage = _quiet_stage,
    watch: Watch = _unwatched,
    commands: tuple[str, ...] = (),
) -> ExportResult:
    """Take a checkpoint of ours the whole road and write everything into ``folder``.

    ``stage`` surrounds each step and ``watch`` wraps each pass over data, for progress; ``commands`` go into the
    report as the way to reproduce it.  Raises what the steps raise; what was written before stays.
    """
    from mpdeploy.source.export import check_export, export_fp32_onnx
    from mpdeploy.source.loading import load_module

    started = time.monotonic()
    reference = folder / REFERENCE
    # What can never work is refused before the work.
    for _, backend in wishes.engines:
        find_backend(backend).target(BuildOptions(), find_gpus())
    given = open_feeds(wishes.data) if wishes.data is not None else None
    with stage("export to FP32 ONNX and check it against torch"):
        loaded = load_module(checkpoint, recipe)
        export_fp32_onnx(loaded, reference)
        checked = check_export(
            loaded, reference, lambda path, feed: truthful_runner(io.load(path), str(path)).run(feed)
        )
    ranges, proof = (given, given) if given is not None else _feeds(checkpoint, loaded)
    models = []
    for precision in wishes.precisions:
        with stage(f"convert to {precision.value.upper()}"):
            path = folder / f"model.{precision.value}.onnx"
            conversion = convert(reference, path, precision=precision.value, data=watch(ranges, "measuring ranges"))
        with stage(f"verify {precision.value.upper()} under true rounding"):
            drift = verify(reference, path, watch(proof, "verifying"), wishes.budget)
        models.append(Exported(precision, conversion, drift))
    for index, model in enumerate(models):
        for precision, backend in wishes.engines:
            if precision is model.precision:
                with stage(f"build the {precision.value.upper()} engine ({backend})"):
                    models[index] = _with_engine(model, backend, ranges)
    with stage("write the report"):
        html, document = write_report(_report(loaded, models, commands), folder)
    return ExportResult(
        checkpoint=str(checkpoint),
        reference=str(reference),
        torch_difference=checked.worst,
        models=tuple(models),
        report_html=str(html),
        report_json=str(document),
        passed=all(m.drift.verdict.passed for m in models),
        seconds=round(time.monotonic() - started, 3),
    )


def _feeds(checkpoint: Path, loaded: "LoadedModule") -> tuple[Feeds, Feeds]:
    """Return the feeds that measure ranges, and those that prove the result: what training left."""
    folders = [checkpoint.parent / name for name in (CALIBRATION, HELD_OUT)]
    examples = {name: tensor.numpy() for name, tensor in loaded.examples.items()}
    ranges, proof = (
        open_feeds(str(folder)) if folder.is_dir() else feeds_of([examples], "the checkpoint's examples")
        for folder in folders
    )
    return ranges, proof


def _with_engine(model: Exported, backend: str, feeds: Feeds) -> Exported:
    source = Path(model.conversion.model)
    target = source.with_suffix(".engine")
    options = BuildOptions(profiles=_profiles(source, feeds))
    record = build(source, target, backend=backend, options=options, expect=model.precision)
    return Exported(model.precision, model.conversion, model.drift, record, str(target))


def _profiles(model: Path, feeds: Feeds) -> tuple[Profile, ...]:
    """One profile: each dynamic axis from 1 to its largest size in the data, best at its first."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for feed in feeds:
        for name, array in feed.items():
            shapes.setdefault(name, []).append(array.shape)
    ranges = []
    for spec in input_specs(io.load(model)):
        if spec.shape is None or all(isinstance(d, int) for d in spec.shape):
            continue
        seen = shapes[spec.name]
        smallest = tuple(d if isinstance(d, int) else 1 for d in spec.shape)
        largest = tuple(max(sizes) for sizes in zip(*seen, strict=True))
        ranges.append(ShapeRange(spec.name, smallest, seen[0], largest))
    return (Profile(tuple(ranges)),) if ranges else ()


def _report(loaded: "LoadedModule", models: list[Exported], commands: tuple[str, ...]) -> Report:
    record = loaded.record
    facts = (
        Fact("recipe", record.recipe.file),
        Fact("trained in", str(record.level)),
        Fact("steps", f"{record.steps_applied} applied, {record.steps_skipped} skipped"),
        Fact(
            f"{record.metric_name} in training's own check",
            "not finite" if record.metric is None else f"{record.metric:.4f}",
        ),
        Fact("seed", str(record.seed)),
    )
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
        title=f"{Path(record.recipe.file).stem}: {', '.join(m.precision.value.upper() for m in models)} against FP32",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        drifts=tuple(m.drift for m in models),
        facts=facts,
        plans=tuple(plan_table(m.conversion) for m in models),
        engines=engines,
        commands=commands,
    )


def plan_table(conversion: ConversionResult) -> PlanTable:
    """Return what a conversion's plan keeps in FP32, as rows for a report."""
    plan = load(PrecisionPlan, Path(conversion.plan))
    rows = tuple(
        PlanRow(d.node, d.op, d.format.value, d.code, d.reason.removeprefix(f"{d.code} "))
        for d in plan.decisions
        if d.format is Format.FP32
    )
    return PlanTable(conversion.model, rows)
