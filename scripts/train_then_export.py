#!/usr/bin/env python3
"""Train a recipe, then take it the whole road: FP32 ONNX, BF16 and FP16 models, their drift, an engine, a report.

It is `mpdeploy pipeline` with the file written for you: what is done already is not done again.
"""

import shlex
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import click

from mpdeploy.amp.levels import Level
from mpdeploy.cli.pipeline import show, voice
from mpdeploy.cli.progress import note
from mpdeploy.errors import MpdeployError
from mpdeploy.pipeline import Deployment, deploy
from mpdeploy.pipeline.config import BuildPart, ConvertPart, TrainPart


@click.command()
@click.argument("recipe", type=click.Path(path_type=Path), default=Path("models/digits_cnn.py"))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("runs/quickstart"), show_default=True)
@click.option("--precision", type=click.Choice([level.value for level in Level]), default=Level.BF16_MIXED.value)
@click.option("--seed", type=int, default=0, show_default=True)
def main(recipe: Path, output: Path, precision: str, seed: int) -> None:
    """Train RECIPE and take it the whole road into the output folder."""
    started = time.monotonic()
    deployment = Deployment(
        output=str(output),
        train=TrainPart(str(recipe), precision, seed=seed),
        convert=ConvertPart(("bf16", "fp16")),
        # TensorRT is optional: without it the road ends at the verified models.
        build=BuildPart(precision=("fp16",)) if find_spec("tensorrt_rtx") else None,
    )
    command = shlex.join(
        ["scripts/quickstart", str(recipe), "-o", str(output), "--precision", precision, "--seed", str(seed)]
    )
    try:
        result = deploy(deployment, voice=voice(), commands=(command,))
    except MpdeployError as error:
        print(f"{Path(sys.argv[0]).name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    note(f"done in {time.monotonic() - started:.0f} s\n")
    show(result)
    sys.exit(0 if result.passed else 1)


if __name__ == "__main__":
    main()
