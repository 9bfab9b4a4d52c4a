"""The first stretch of the road: from whatever the model came as to FP32 ONNX, and the data that goes with it."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mpdeploy.errors import UsageError
from mpdeploy.files import atomic_path
from mpdeploy.graph import io
from mpdeploy.graph.patience import limited
from mpdeploy.numerics.handover import MeasuredRanges
from mpdeploy.records import load
from mpdeploy.report.record import Fact
from mpdeploy.runtime.choose import truthful_runner
from mpdeploy.runtime.feeds import Feeds, feeds_of, open_feeds
from mpdeploy.runtime.runner import Array, Feed, Runner, TensorSpec, input_specs
from mpdeploy.source import (
    RANGES,
    Given,
    Kind,
    LoadedModule,
    check_export,
    export_fp32_onnx,
    kind_of,
    open_source,
    write_ranges,
)
from mpdeploy.source.kept import kept_nodes

REFERENCE = "model.onnx"
CALIBRATION, HELD_OUT = "calibration", "heldout"  # folders that training leaves beside a checkpoint

MADE_UP = "no data was given: verified on random inputs, which say little about real ones"
_SAMPLES = 8
_BATCH, _LENGTH = 4, 32


@dataclass(frozen=True)
class Reference:
    """The FP32 ONNX file and where it comes from.

    ``difference`` is its largest norm-relative difference from torch, None if the model came as ONNX; ``sizes`` are
    the sizes of dynamic axes that were tried.  ``made_up`` tells that there are no real samples of the inputs.
    """

    title: str
    difference: float | None
    sizes: tuple[dict[str, int], ...]
    made_up: bool
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]
    keep_fp32: tuple[str, ...] = ()
    schema: str = "mpdeploy.reference/1"


def make_reference(
    source: Path, target: Path, given: Given, data: Feeds | None, timeout: float | None = None
) -> tuple[Reference, dict[str, Array] | None]:
    """Write ``source`` to ``target`` as FP32 ONNX, held against torch; return its record and the source's examples.

    One run of it may take ``timeout`` seconds.  Where a training of ours measured ranges, they go into `ranges.json`
    beside ``target``.  Raises what ``open_source``, ``export_fp32_onnx`` and ``check_export`` raise.
    """
    if kind_of(source) is Kind.ONNX:
        return _copied(source, target, made_up=data is None), None
    loaded = open_source(source, given, data, timeout=timeout)
    export_fp32_onnx(loaded, target)
    runners: list[Runner] = []  # made once, when there is a file

    def run(path: Path, feed: Mapping[str, Array]) -> Mapping[str, Array]:
        if not runners:
            runners.append(truthful_runner(limited(io.load(path), timeout), str(path), lean=True))
        return runners[0].run(feed)

    checked = check_export(loaded, target, run)
    if loaded.record is not None:
        write_ranges(loaded, target)
    made_up = loaded.made_up and data is None
    reference = Reference(
        title=Path(loaded.origin).stem,
        difference=checked.worst,
        sizes=checked.sizes,
        made_up=made_up,
        facts=tuple(_facts(loaded, checked.worst)),
        notes=(*loaded.notes, *checked.notes),
        keep_fp32=kept_nodes(loaded.record.fp32_modules if loaded.record else (), target),
    )
    return reference, {name: tensor.numpy() for name, tensor in loaded.examples.items()}


def feeds_for(source: Path, reference: Path, record: Reference, few: Feeds) -> tuple[Feeds | None, Feeds]:
    """Return the feeds that measure ranges, None if there are none worth it, and those that prove the result.

    They are what training left beside the checkpoint, or ``few``, the checkpoint's examples.  Ranges that training
    measured (see ``trained_ranges``) tell more than a few examples; random inputs tell nothing of ranges.
    """
    if record.made_up:
        return None, random_feeds(reference, next(few.opener(), ("", {}))[1])
    folders = [source.parent / name for name in (CALIBRATION, HELD_OUT)]
    calibration, held_out = (open_feeds(str(folder)) if folder.is_dir() else None for folder in folders)
    if calibration is None and trained_ranges(reference) is None:
        calibration = few
    return calibration, held_out or few


def trained_ranges(reference: Path) -> Path | None:
    """Return the file with what training measured of the values of an FP32 ONNX file; None if there is nothing."""
    path = reference.with_name(RANGES)
    return path if path.is_file() and load(MeasuredRanges, path).values else None


def random_feeds(reference: Path, example: Feed) -> Feeds:
    """Return seeded random feeds that fit an ONNX model's inputs: normal numbers, and integers below 2.

    Open axes are as long as in ``example``, a feed of the source's own, where it holds the input.
    """
    specs = [_sized(spec, example) for spec in input_specs(io.load(reference))]
    try:
        feeds = [{s.name: _random(s, seed) for s in specs} for seed in range(_SAMPLES)]
    except (MemoryError, ValueError) as error:
        raise UsageError(
            f"there is no memory for random inputs of {', '.join(map(str, specs))}",
            where=str(reference),
            remedy="give samples with --data",
        ) from error
    return feeds_of(feeds, "random inputs")


def _sized(spec: TensorSpec, example: Feed) -> TensorSpec:
    known = example.get(spec.name)
    return spec if known is None or known.ndim != len(spec.shape or ()) else replace(spec, shape=known.shape)


def _random(spec: TensorSpec, seed: int) -> Array:
    random = np.random.default_rng(seed)
    sizes = (_BATCH, *[_LENGTH] * len(spec.shape or ()))
    shape = tuple(axis if isinstance(axis, int) else size for axis, size in zip(spec.shape or (), sizes, strict=False))
    dtype = np.dtype(spec.dtype)
    if dtype.kind == "f":
        return np.asarray(random.standard_normal(shape)).astype(dtype)
    return np.asarray(random.integers(0, 2, shape)).astype(dtype)


def _copied(source: Path, target: Path, *, made_up: bool) -> Reference:
    model = io.load(source)  # checked before it counts as a reference
    if source.resolve() != target.resolve():
        if io.source_of(model).external:
            io.save(model, target)
        else:
            with atomic_path(target) as scratch:
                shutil.copyfile(source, scratch)
    return Reference(source.stem, None, (), made_up, (Fact("source", source.name),), ())


def _facts(loaded: LoadedModule, difference: float) -> list[Fact]:
    facts = [Fact("FP32 ONNX against torch", f"{difference:.1e} (norm-relative)")]
    record = loaded.record
    if record is None:
        return [Fact("source", loaded.origin), *facts]
    metric = "not finite" if record.metric is None else f"{record.metric:.4f}"
    return [
        Fact("recipe", record.recipe.file),
        Fact("trained in", str(record.level)),
        Fact("steps", f"{record.steps_applied} applied, {record.steps_skipped} skipped"),
        Fact(f"{record.metric_name} in training's own check", metric),
        Fact("seed", str(record.seed)),
        *facts,
    ]


def with_notes(record: Reference) -> Reference:
    """Return the record with a note where there is no real data."""
    return replace(record, notes=(*record.notes, MADE_UP)) if record.made_up else record
