"""The road from a model in any form to verified models, an engine and a report, in one folder."""

import time
from dataclasses import replace
from pathlib import Path

from mpdeploy.conversion.api import convert
from mpdeploy.engine.backends import find_backend
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.gpu import find_gpus
from mpdeploy.engine.options import BuildOptions
from mpdeploy.engine.record import sidecar_of
from mpdeploy.errors import named_in
from mpdeploy.files import atomic_folder
from mpdeploy.graph.io import files_of
from mpdeploy.numerics.formats import Format
from mpdeploy.pipeline.manifest import is_exported, write_manifest
from mpdeploy.pipeline.record import Exported, ExportResult, Stage, Watch, Wishes, quiet_stage, unwatched
from mpdeploy.pipeline.reference import REFERENCE, feeds_for, make_reference, trained_ranges, with_notes
from mpdeploy.pipeline.steps import notes_on, report_on
from mpdeploy.records import relocated, save
from mpdeploy.report.write import write_report
from mpdeploy.runtime.apart import require_apart
from mpdeploy.runtime.feeds import Feeds, as_feeds, feeds_of
from mpdeploy.source.given import NOTHING, Given
from mpdeploy.source.kinds import Kind, kind_of
from mpdeploy.source.ranges import RANGES
from mpdeploy.verification.api import verify
from mpdeploy.verification.tasks import Scoring


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
    ``commands`` go into the report as the way to reproduce it.  What an earlier export wrote into the folder is
    replaced in one step when all is done; other files there stay.  Raises what the steps raise, and ``UsageError`` if
    a file that is read would be replaced; then the folder is as it was.
    """
    started = time.monotonic()
    # What can never work is refused before the work.
    replaced = tuple(path for path in _replaced(folder, wishes) if not _stays(model, path))
    require_apart(replaced, models=(model,), others=(wishes.data, given.recipe, given.factory))
    for _, backend in wishes.engines:
        find_backend(backend).target(BuildOptions(), find_gpus())
    data = as_feeds(wishes.data) if wishes.data is not None else None
    with atomic_folder(folder, is_exported) as scratch, named_in(scratch, folder):
        made = _fill(scratch, folder, model, wishes, given, data, stage, watch, commands)
    return replace(made, seconds=round(time.monotonic() - started, 3))


def _replaced(folder: Path, wishes: Wishes) -> tuple[Path, ...]:
    """What the export replaces in its folder: what is written now, and what an earlier one wrote."""
    there = (path for path in folder.iterdir() if is_exported(path.name)) if folder.is_dir() else ()
    names = (REFERENCE, *(f"model.{precision.value}.onnx" for precision in wishes.precisions))
    return tuple(dict.fromkeys((*(folder / name for name in names), *there)))


def _stays(model: Path, target: Path) -> bool:
    """Whether a model in one file lies where the reference goes, which is a copy of it then."""
    if target.name != REFERENCE or model.is_symlink() or not model.is_file() or not target.exists():
        return False
    here = model.parent.resolve() / model.name == target.parent.resolve() / target.name
    return here and kind_of(model) is Kind.ONNX and len(files_of(model)) == 1


def _fill(
    scratch: Path,
    folder: Path,
    model: Path,
    wishes: Wishes,
    given: Given,
    data: Feeds | None,
    stage: Stage,
    watch: Watch,
    commands: tuple[str, ...],
) -> ExportResult:
    """Make all files of the export in ``scratch``; what they and the result say of paths is about ``folder``."""
    reference = scratch / REFERENCE
    with stage("export to FP32 ONNX and check it against torch"):
        record, examples = make_reference(model, reference, given, data, wishes.timeout)
    record = with_notes(record)
    few = feeds_of([examples or {}], "the model's examples")
    ranges, proof = (data, data) if data is not None else feeds_for(model, reference, record, few)
    models = tuple(
        _model(reference, precision, ranges, proof, wishes, stage, watch, record.keep_fp32)
        for precision in wishes.precisions
    )
    for precision, backend in wishes.engines:
        with stage(f"build the {precision.value.upper()} engine ({backend})"):
            models = tuple(_with_engine(m, backend, proof, folder) if m.precision is precision else m for m in models)
    passed = all(m.drift.verdict.passed for m in models)
    with stage("write the report and the manifest"):
        report = report_on(record, models, commands)
        html, document = write_report(relocated(report, scratch, folder), scratch)
        others = (html, document, scratch / RANGES)
        manifest = write_manifest(scratch, model, reference, models, others, passed=passed)
    result = ExportResult(
        checkpoint=str(model),
        reference=str(reference),
        torch_difference=record.difference,
        models=models,
        report_html=str(html),
        report_json=str(document),
        passed=passed,
        seconds=0.0,
        manifest=str(manifest),
        notes=notes_on(record, models),
    )
    return relocated(result, scratch, folder)


def _model(
    reference: Path,
    precision: Format,
    ranges: Feeds | None,
    proof: Feeds,
    wishes: Wishes,
    stage: Stage,
    watch: Watch,
    trained_fp32: tuple[str, ...],
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
            policy=wishes.policy,
            keep_fp32=wishes.keep_fp32,
            op_fp32=wishes.op_fp32,
            low_io=wishes.low_io,
            target=wishes.target,
            timeout=wishes.timeout,
            trained_fp32=trained_fp32,
        )
    with stage(f"verify {precision.value.upper()} under true rounding"):
        scoring = Scoring(labels=wishes.labels)
        drift = verify(
            reference, path, watch(proof, "verifying"), wishes.budget, scoring=scoring, timeout=wishes.timeout
        )
    return Exported(precision, conversion, drift)


def _with_engine(model: Exported, backend: str, feeds: Feeds, folder: Path) -> Exported:
    source = Path(model.conversion.model)
    target = source.with_suffix(".engine")
    record = build_engine(source, target, backend=backend, expect=model.precision, data=feeds)
    record = relocated(record, source.parent, folder)
    save(record, sidecar_of(target))
    return replace(model, engine=record, engine_path=str(target))
