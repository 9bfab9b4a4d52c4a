"""The road from a model in any form to verified models, an engine and a report, in one folder."""

import time
from dataclasses import replace
from pathlib import Path

from mpdeploy.conversion.api import convert
from mpdeploy.engine.backends import find_backend
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.gpu import find_gpus
from mpdeploy.engine.options import BuildOptions
from mpdeploy.numerics.formats import Format
from mpdeploy.pipeline.manifest import write_manifest
from mpdeploy.pipeline.record import Exported, ExportResult, Stage, Watch, Wishes, quiet_stage, unwatched
from mpdeploy.pipeline.reference import REFERENCE, feeds_for, make_reference, trained_ranges, with_notes
from mpdeploy.pipeline.steps import profiles_for, report_on
from mpdeploy.report.write import write_report
from mpdeploy.runtime.feeds import Feeds, feeds_of, open_feeds
from mpdeploy.source.given import NOTHING, Given
from mpdeploy.source.ranges import RANGES
from mpdeploy.verification.api import verify


def export(
    model: Path,
    folder: Path,
    wishes: Wishes,
    *,
    given: Given = NOTHING,
    stage: Stage = quiet_stage,
    watch: Watch = unwatched,
    commands: tuple[str, ...] = (),
) -> ExportResult:
    """Take a model the whole road and write everything into ``folder``.

    ``model`` is a file or folder in any form that ``mpdeploy.source.kinds.Kind`` names, ``given`` what its form
    does not say.  ``stage`` surrounds each step and ``watch`` wraps each pass over data, for progress;
    ``commands`` go into the report as the way to reproduce it.  Raises what the steps raise; what was written
    before stays.
    """
    started = time.monotonic()
    reference = folder / REFERENCE
    # What can never work is refused before the work.
    for _, backend in wishes.engines:
        find_backend(backend).target(BuildOptions(), find_gpus())
    data = open_feeds(wishes.data) if wishes.data is not None else None
    with stage("export to FP32 ONNX and check it against torch"):
        record, examples = make_reference(model, reference, given, data)
    record = with_notes(record)
    few = feeds_of([examples or {}], "the model's examples")
    ranges, proof = (data, data) if data is not None else feeds_for(model, reference, record, few)
    models = tuple(_model(reference, precision, ranges, proof, wishes, stage, watch) for precision in wishes.precisions)
    for precision, backend in wishes.engines:
        with stage(f"build the {precision.value.upper()} engine ({backend})"):
            models = tuple(_with_engine(m, backend, proof) if m.precision is precision else m for m in models)
    passed = all(m.drift.verdict.passed for m in models)
    with stage("write the report and the manifest"):
        html, document = write_report(report_on(record, models, commands), folder)
        others = (html, document, folder / RANGES)
        manifest = write_manifest(folder, model, reference, models, others, passed=passed)
    return ExportResult(
        checkpoint=str(model),
        reference=str(reference),
        torch_difference=record.difference,
        models=models,
        report_html=str(html),
        report_json=str(document),
        passed=passed,
        seconds=round(time.monotonic() - started, 3),
        manifest=str(manifest),
        notes=record.notes,
    )


def _model(
    reference: Path, precision: Format, ranges: Feeds | None, proof: Feeds, wishes: Wishes, stage: Stage, watch: Watch
) -> Exported:
    with stage(f"convert to {precision.value.upper()}"):
        path = reference.with_name(f"model.{precision.value}.onnx")
        data = None if ranges is None else watch(ranges, "measuring ranges")
        conversion = convert(
            reference,
            path,
            precision=precision.value,
            data=data,
            ranges=trained_ranges(reference) if data is None else None,
        )
    with stage(f"verify {precision.value.upper()} under true rounding"):
        drift = verify(reference, path, watch(proof, "verifying"), wishes.budget)
    return Exported(precision, conversion, drift)


def _with_engine(model: Exported, backend: str, feeds: Feeds) -> Exported:
    source = Path(model.conversion.model)
    target = source.with_suffix(".engine")
    options = BuildOptions(profiles=profiles_for(source, feeds))
    record = build_engine(source, target, backend=backend, options=options, expect=model.precision)
    return replace(model, engine=record, engine_path=str(target))
