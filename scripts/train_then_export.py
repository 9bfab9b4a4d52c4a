#!/usr/bin/env python3
"""Train a recipe, export it, convert it to BF16 and FP16, prove the drift of both, build an engine, and sum it up.

Each stage is one call of mpdeploy; `mpdeploy train|export|convert|verify|build` do the same one by one.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mpdeploy import records
from mpdeploy.amp.levels import Level
from mpdeploy.cli.progress import meter, note, track
from mpdeploy.engine.api import build
from mpdeploy.engine.options import BuildOptions, Profile, ShapeRange
from mpdeploy.engine.record import EngineRecord
from mpdeploy.errors import DependencyError, MpdeployError
from mpdeploy.numerics.formats import LOW_FORMATS, Format
from mpdeploy.runtime.feeds import open_feeds
from mpdeploy.verify.record import DriftReport

BATCHES = (1, 32, 256)  # smallest, usual and largest batch of an engine


@dataclass(frozen=True)
class Row:
    """What the final table says of one model."""

    kind: Format
    model: Path
    drift: DriftReport


def main() -> int:
    words = parse_words()
    started = time.monotonic()
    folder: Path = words.output
    try:
        with stage("train"):
            checkpoint = train(words.recipe, folder, Level(words.precision), words.seed)
        with stage("export to FP32 ONNX, and check it against torch"):
            reference = export(checkpoint, words.recipe, folder / "model.onnx")
        rows = []
        for kind in LOW_FORMATS:
            with stage(f"convert to {kind.value} and verify under true rounding"):
                rows.append(lower(reference, folder, kind))
        with stage("build a TensorRT for RTX engine from the FP16 model"):
            engine = build_engine(folder, Format.FP16)
    except MpdeployError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        return error.exit_code
    note(f"done in {time.monotonic() - started:.0f} s\n")
    show(rows, reference, engine)
    return 0 if all(row.drift.verdict.passed for row in rows) else 1


def parse_words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", type=Path, default=Path("models/digits_cnn.py"))
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--precision", choices=[level.value for level in Level], default=Level.BF16_MIXED.value)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Say what is being done, and how long it took."""
    started = time.monotonic()
    note(f"── {name}")
    yield
    note(f"   {time.monotonic() - started:.1f} s")


def train(recipe: Path, folder: Path, level: Level, seed: int) -> Path:
    from mpdeploy.train.loading import load_recipe
    from mpdeploy.train.loop import CHECKPOINT, Settings, Training

    loaded = load_recipe(recipe)
    training = Training(loaded, folder, Settings(level, loaded.recipe.epochs, seed))
    for _ in track(training.steps(), f"training {loaded.name} in {level.value}", total=training.steps_left):
        pass
    record = training.finish()
    note(f"   {record.metric_name} on held-out examples {record.metric}, {record.steps_skipped} steps skipped")
    return folder / CHECKPOINT


def export(checkpoint: Path, recipe: Path, target: Path) -> Path:
    from mpdeploy.graph.io import load
    from mpdeploy.runtime.choose import truthful_runner
    from mpdeploy.source.export import check_export, export_fp32_onnx
    from mpdeploy.source.loading import load_module

    module = load_module(checkpoint, recipe)
    export_fp32_onnx(module, target)
    checked = check_export(module, target, lambda path, feed: truthful_runner(load(path), str(path)).run(feed))
    note(f"   differs from torch by {checked.worst:.1e} at most")
    return target


def lower(reference: Path, folder: Path, kind: Format) -> Row:
    from mpdeploy.convert.api import convert
    from mpdeploy.verify.api import verify

    model = folder / f"model.{kind.value}.onnx"
    convert(reference, model, precision=kind, data=open_feeds(str(folder / "calibration")))
    feeds = open_feeds(str(folder / "heldout"))
    drift = verify(reference, model, feeds)
    records.save(drift, folder / f"drift.{kind.value}.json")
    return Row(kind, model, drift)


def build_engine(folder: Path, kind: Format) -> EngineRecord | None:
    """Return the record of the engine, None where TensorRT for RTX is not installed: it is optional."""
    from mpdeploy.graph.io import load
    from mpdeploy.runtime.runner import input_specs

    model = folder / f"model.{kind.value}.onnx"
    ranges = []
    for spec in input_specs(load(model)):
        shapes = [tuple(batch if isinstance(d, str) else int(d or 1) for d in spec.shape or ()) for batch in BATCHES]
        ranges.append(ShapeRange(spec.name, *shapes))
    options = BuildOptions(profiles=(Profile(tuple(ranges)),))
    try:
        with meter("building") as report:
            return build(
                model,
                model.with_suffix(".engine"),
                options=options,
                expect=kind,
                progress=lambda step: report(step.done / max(step.total, 1), step.phase),
            )
    except DependencyError as error:
        note(f"   left out: {error}")
        return None


def show(rows: list[Row], reference: Path, engine: EngineRecord | None) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("format", "accuracy", "top-1 as FP32", "worst drift", "model", "verdict"):
        table.add_column(title, no_wrap=True)
    first = rows[0].drift.outputs[0]
    table.add_row("fp32", share(first.accuracy_reference), "", "", kilobytes(reference), "reference")
    for row in rows:
        worst = max(row.drift.outputs, key=lambda output: output.worst_sample_error or 0)
        table.add_row(
            row.kind.value,
            share(worst.accuracy_candidate),
            share(worst.top1),
            "" if worst.worst_sample_error is None else f"{worst.worst_sample_error:.1e}",
            kilobytes(row.model),
            "pass" if row.drift.verdict.passed else f"FAIL: {row.drift.verdict.headline}",
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    if engine is not None:
        print(f"engine  {reference.parent / engine.engine.name}, {engine.engine.bytes / 1e3:.0f} kB, FP16")


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"


def kilobytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e3:.0f} kB"


if __name__ == "__main__":
    sys.exit(main())
