#!/usr/bin/env python3
"""What the digits model loses in BF16 and FP16, over several trainings, and what its engines weigh.

    python scripts/bench_digits.py            # seeds 0 to 4, the figures of the README
    python scripts/bench_digits.py --seeds 2

Each seed is one training in bf16-mixed, then the whole road: accuracy is counted on the 360 held-out images by ONNX
Runtime (FP32) and under true rounding (BF16, FP16).
"""

import statistics
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import click

from mpdeploy import pipeline
from mpdeploy.cli.progress import track
from mpdeploy.engine.building import build_engine
from mpdeploy.errors import MpdeployError
from mpdeploy.numerics.formats import Format
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import CHECKPOINT, Settings, Training

RECIPE = Path(__file__).parent.parent / "models" / "digits_cnn.py"


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True)
def main(seeds: int) -> None:
    """Train and export the digits model with several seeds and print a table."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            homes = [Path(folder) / str(seed) for seed in range(seeds)]
            results = [road(seed, home) for seed, home in track(enumerate(homes), "seeds", total=seeds)]
            show(results)
    except MpdeployError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")


def road(seed: int, folder: Path) -> pipeline.ExportResult:
    loaded = load_recipe(RECIPE)
    training = Training(loaded, folder, Settings(loaded.recipe.level, loaded.recipe.epochs, seed))
    for _ in training.steps():
        pass
    training.finish()
    engines = ((Format.FP16, "rtx"),) if find_spec("tensorrt_rtx") and seed == 0 else ()
    wishes = pipeline.Wishes((Format.BF16, Format.FP16), engines=engines)
    return pipeline.export(folder / CHECKPOINT, folder, wishes, given=pipeline.Given(recipe=str(RECIPE)))


def show(results: list[pipeline.ExportResult]) -> None:
    drifts = {m.precision: [r.models[i].drift for r in results] for i, m in enumerate(results[0].models)}
    first = next(iter(drifts.values()))
    samples = first[0].outputs[0].samples
    print(f"{len(results)} trainings in bf16-mixed, {samples} held-out images")
    print("format  accuracy: mean ± deviation  (least to most)    same class as FP32: mean (least)")
    row("fp32", [d.outputs[0].accuracy_reference or 0.0 for d in first])
    for precision, several in drifts.items():
        same = [d.outputs[0].top1 or 0.0 for d in several]
        row(precision.value, [d.outputs[0].accuracy_candidate or 0.0 for d in several], same)
    for precision in drifts:
        passed = sum(m.drift.verdict.passed for r in results for m in r.models if m.precision is precision)
        worst = max(d.outputs[0].worst_sample_error or 0.0 for d in drifts[precision])
        print(f"{precision.value}: {passed} of {len(results)} within budget, worst drift of a sample {worst:.1e}")
    low = next((m for m in results[0].models if m.engine is not None), None)
    if low is not None and low.engine is not None:
        full = build_engine(
            results[0].reference, Path(low.engine_path).with_suffix(".fp32"), options=low.engine.options
        )
        ratio = low.engine.engine.bytes / full.engine.bytes
        print(f"engine: {low.engine.engine.bytes:,} bytes in FP16, {full.engine.bytes:,} in FP32, ratio {ratio:.2f}")


def row(name: str, accuracies: list[float], same: list[float] | None = None) -> None:
    spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
    text = (
        f"{name:5} {statistics.mean(accuracies):8.2%} ± {spread:.2%}  ({min(accuracies):.2%} to {max(accuracies):.2%})"
    )
    print(text + (f"   {statistics.mean(same):.2%} ({min(same):.2%})" if same else ""))


if __name__ == "__main__":
    main()
