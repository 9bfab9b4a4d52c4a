#!/usr/bin/env python3
"""Train a recipe, then export it: FP32 ONNX, BF16 and FP16 models, their drift, an engine, a report, a table.

`mpdeploy train` and `mpdeploy export` do the same in two steps; here they are one, with both formats.
"""

import sys
import time
from importlib.util import find_spec
from pathlib import Path

import click

from mpdeploy import pipeline
from mpdeploy.amp.levels import Level
from mpdeploy.cli.export import show, told, watched
from mpdeploy.cli.progress import note, track
from mpdeploy.errors import MpdeployError
from mpdeploy.numerics.formats import Format


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path), default=Path("models/digits_cnn.py"))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("runs/quickstart"), show_default=True)
@click.option("--precision", type=click.Choice([level.value for level in Level]), default=Level.BF16_MIXED.value)
@click.option("--seed", type=int, default=0, show_default=True)
def main(recipe: Path, output: Path, precision: str, seed: int) -> None:
    """Train RECIPE and take it the whole road into the output folder."""
    started = time.monotonic()
    try:
        checkpoint = train(recipe, output, Level(precision), seed)
        # TensorRT is optional: without it the road ends at the verified models.
        engines = ((Format.FP16, "rtx"),) if find_spec("tensorrt_rtx") else ()
        wishes = pipeline.Wishes((Format.BF16, Format.FP16), engines=engines)
        command = f"{Path(sys.argv[0]).name} {recipe} -o {output} --precision {precision} --seed {seed}"
        result = pipeline.export(
            checkpoint,
            output,
            wishes,
            given=pipeline.Given(recipe=str(recipe)),
            stage=told,
            watch=watched,
            commands=(command,),
        )
    except MpdeployError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    note(f"done in {time.monotonic() - started:.0f} s\n")
    show(result)
    sys.exit(0 if result.passed else 1)


def train(recipe: Path, folder: Path, level: Level, seed: int) -> Path:
    from mpdeploy.train.loading import load_recipe
    from mpdeploy.train.loop import CHECKPOINT, Settings, Training

    loaded = load_recipe(recipe)
    with told(f"train {loaded.name} in {level.value}"):
        training = Training(loaded, folder, Settings(level, loaded.recipe.epochs, seed))
        for _ in track(training.steps(), f"training {loaded.name}", total=training.steps_left):
            pass
        training.finish()
    return folder / CHECKPOINT


if __name__ == "__main__":
    main()
