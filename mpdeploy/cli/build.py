"""`mpdeploy build`: an engine from an ONNX model."""

from pathlib import Path

import click

from mpdeploy.cli.engines import show_engine
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.progress import meter
from mpdeploy.cli.words import Word
from mpdeploy.engine.options import Feature
from mpdeploy.engine.toolkit import Flavour
from mpdeploy.errors import UsageError


def _refuse_precision(context: click.Context, option: click.Parameter, given: bool) -> None:
    if given:
        word = (option.name or "").replace("_", "-")
        raise UsageError(
            f"there is no --{word}: an engine computes in the types that stand in the ONNX graph",
            where="mpdeploy build",
            remedy=f"run 'mpdeploy convert MODEL.onnx -o LOW.onnx --precision {word}' first, then build LOW.onnx",
        )


def _precision_flag(name: str) -> click.Option:
    return click.Option(
        [f"--{name}"], is_flag=True, hidden=True, is_eager=True, expose_value=False, callback=_refuse_precision
    )


@click.command(
    epilog="Precision is not a flag here.  TensorRT 11 and TensorRT for RTX execute the types written in the "
    "ONNX graph: 'mpdeploy convert' writes them, --expect makes the build prove them."
)
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The engine to write.")
@click.option(
    "--backend",
    type=Word([flavour.value for flavour in Flavour]),
    default="rtx",
    show_default=True,
    help="Which TensorRT builds.",
)
@click.option(
    "--shapes",
    multiple=True,
    metavar="NAME:MIN:OPT:MAX",
    help="Shapes of a dynamic input, as in images:1x3x224x224:8x3x224x224:32x3x224x224.  Once for each input; "
    "once more for the same input opens a second profile.",
)
@click.option(
    "--sm", multiple=True, metavar="86,89", help="Compute capabilities to build for [default: Ampere and later]."
)
@click.option("--workspace", metavar="SIZE", help="Memory the builder may use, as in 512M or 4G.")
@click.option("--opt-level", type=click.IntRange(0, 5), help="How hard the builder tries, 0 to 5.")
@click.option("--tf32", is_flag=True, help="Let FP32 products round their operands to TF32.")
@click.option(
    "--feature",
    multiple=True,
    type=Word([feature.value for feature in Feature]),
    help="A further property of the engine; may be repeated.",
)
@click.option(
    "--expect",
    type=Word(("fp32", "fp16", "bf16", "int8", "fp8", "fp4")),
    help="Fail (exit code 5) unless most products of the network multiply this format.",
)
@click.option(
    "--plan", type=click.Path(path_type=Path), help="The plan the model was converted with: fail unless followed."
)
@click.option("--data", metavar="D", help="Shape ranges from FILE.npz, a folder of them, or module.py:callable.")
@click.option("--drift", type=click.Path(path_type=Path), help="The model's drift report, for the record.")
@click.option("--timing-cache", metavar="FILE", help="A file of kernel timings to read and extend (tensorrt only).")
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    envvar="MPDEPLOY_ENGINE_CACHE",
    show_envvar=True,
    help="A folder of engines built before.",
)
@click.option(
    "--rebuilds",
    type=click.IntRange(min=1),
    default=1,
    help="Build this many times and count how many engines differ.",
)
@result_options
def command(
    model: Path,
    output: Path,
    backend: str,
    shapes: tuple[str, ...],
    sm: tuple[str, ...],
    workspace: str | None,
    opt_level: int | None,
    tf32: bool,
    feature: tuple[str, ...],
    expect: str | None,
    plan: Path | None,
    data: str | None,
    drift: Path | None,
    timing_cache: str | None,
    cache: Path | None,
    rebuilds: int,
) -> Outcome:
    """Build an engine from MODEL, an ONNX file, and write ENGINE.json beside it.

    The JSON file holds the hashes of model and engine, versions, targets, shapes, and how many layers and
    weights compute in which type.
    """
    from mpdeploy.engine.api import build
    from mpdeploy.engine.monitor import BuildStep

    with meter(f"building {output.name}") as report:

        def progress(step: BuildStep) -> None:
            report(step.done / max(step.total, 1), step.phase)

        record = build(
            model,
            output,
            backend=backend,
            shapes=shapes,
            sm=sm,
            workspace=workspace,
            opt_level=opt_level,
            tf32=tf32,
            feature=feature,
            expect=expect,
            plan=plan,
            data=data,
            drift=drift,
            timing_cache=timing_cache,
            cache=cache,
            rebuilds=rebuilds,
            progress=progress,
        )

    return Outcome(record, lambda: show_engine(record, str(output)))


for _name in ("fp16", "bf16"):
    command.params.append(_precision_flag(_name))
