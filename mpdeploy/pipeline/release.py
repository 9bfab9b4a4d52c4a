"""The last stages: everything a person looks at in one folder, and the bundle that ships."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpdeploy.bundle.manifest import TrainingFacts
from mpdeploy.bundle.pack import Packing, pack
from mpdeploy.bundle.triton import Serving
from mpdeploy.files import sha256_of
from mpdeploy.pipeline.config import BundlePart
from mpdeploy.pipeline.manifest import write_manifest
from mpdeploy.pipeline.record import Exported
from mpdeploy.pipeline.reference import REFERENCE, Reference
from mpdeploy.pipeline.stages import RECORD, Done
from mpdeploy.pipeline.steps import report_on
from mpdeploy.report.write import write_report
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.source.kinds import Kind, kind_of
from mpdeploy.source.ranges import RANGES

if TYPE_CHECKING:
    from mpdeploy.train.checkpoint import CheckpointRecord

# What a stage leaves for the ones after it, and nobody else needs.
FACTS, CONVERSION, DRIFT, EXAMPLES = "reference.json", "conversion.json", "drift.json", "examples.npz"
_INTERNAL = frozenset({RECORD, FACTS, CONVERSION, DRIFT, EXAMPLES})


def gather_report(
    work: Path,
    source: Path,
    record: Reference,
    models: tuple[Exported, ...],
    parts: list[Done],
    commands: tuple[str, ...],
    *,
    with_source: bool,
) -> None:
    """Fill ``work`` with the stages' models, plans and engines, the report on them and a manifest.

    ``with_source`` puts the checkpoint that they come from beside them.
    """
    if with_source:
        _link(source, work / source.name)
    for part in parts:
        for name in part.record.files:
            if name not in _INTERNAL:
                _link(part.folder / name, work / name)
    html, document = write_report(report_on(record, models, commands), work)
    here = tuple(_moved(model, work) for model in models)
    passed = all(m.drift.verdict.passed for m in models)
    write_manifest(work, source, work / REFERENCE, here, (html, document, work / RANGES), passed=passed)


def bundle(report: Path, work: Path, part: BundlePart, source: Path, sample: Feeds) -> None:
    """Pack the folder ``report`` into ``work``."""
    packing = Packing(
        name=part.name,
        version=part.version,
        sample=sample.first(1),
        licences=tuple(Path(path) for path in part.licences),
        training=_training(source),
        serving=Serving() if part.triton else None,
        key=None if part.sign is None else Path(part.sign),
    )
    pack(report, work / part.name, packing)


def _moved(model: Exported, folder: Path) -> Exported:
    conversion = replace(
        model.conversion,
        model=str(folder / Path(model.conversion.model).name),
        plan=str(folder / Path(model.conversion.plan).name) if model.conversion.plan else "",
    )
    engine = str(folder / Path(model.engine_path).name) if model.engine_path else ""
    return replace(model, conversion=conversion, engine_path=engine)


def _link(source: Path, target: Path) -> None:
    """The same bytes in another place; where links are impossible, a copy."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _training(source: Path) -> TrainingFacts | None:
    from mpdeploy.errors import MpdeployError
    from mpdeploy.train.checkpoint import load_checkpoint

    if not source.is_file() or kind_of(source) is not Kind.TORCH:
        return None
    try:
        record = load_checkpoint(source).record
    except MpdeployError:
        return None  # another kind of file
    return training_facts(source, record)


def training_facts(checkpoint: Path, record: "CheckpointRecord") -> TrainingFacts:
    """Return what a manifest says of the training behind a checkpoint of ours."""
    return TrainingFacts(
        checkpoint_sha256=sha256_of(checkpoint),
        recipe=record.recipe.file,
        recipe_sha256=record.recipe.sha256,
        level=str(record.level),
        seed=record.seed,
        epochs=record.epochs,
        metric_name=record.metric_name,
        metric=record.metric,
        steps_applied=record.steps_applied,
        steps_skipped=record.steps_skipped,
        torch_version=record.torch_version,
        mpdeploy_version=record.mpdeploy_version,
    )
