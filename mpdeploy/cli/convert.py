"""`mpdeploy convert`: an FP32 ONNX model to FP16 or BF16."""

from pathlib import Path

import click

from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.progress import track


@click.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where to write the model.")
@click.option("--precision", required=True, type=click.Choice(["fp16", "bf16"]), help="The low format.")
@click.option("--data", help="Feeds for measured ranges: FILE.npz, a folder of them, or module.py:callable.")
@click.option("--ranges", type=click.Path(path_type=Path), help="Ranges from training (ranges.json), without --data.")
@click.option("--policy", help="autocast, safe (default without data), balanced (default with data), or fast.")
@click.option("--plan", type=click.Path(path_type=Path), help="Apply this plan instead of making one.")
@click.option("--keep-fp32", multiple=True, metavar="NODE_GLOB", help="Keep these nodes in FP32.")
@click.option("--op-fp32", multiple=True, metavar="OP", help="Keep all operators of this type in FP32.")
@click.option("--low-io", is_flag=True, help="Inputs and outputs in the low format, too.")
@result_options
def command(
    source: Path,
    output: Path,
    precision: str,
    data: str | None,
    ranges: Path | None,
    policy: str | None,
    plan: Path | None,
    keep_fp32: tuple[str, ...],
    op_fp32: tuple[str, ...],
    low_io: bool,
) -> Outcome:
    """Convert the FP32 model SOURCE (ONNX) to FP16 or BF16.

    The plan, with the reason for each operator's format, is written beside the model.
    """
    from mpdeploy.conversion.api import convert
    from mpdeploy.runtime.feeds import open_feeds

    feeds = open_feeds(data) if data is not None else None
    if feeds is not None:
        total = feeds.count
        feeds = feeds.through(lambda items: track(items, "measuring ranges", total))
    result = convert(
        source,
        output,
        precision=precision,
        data=feeds,
        ranges=ranges,
        policy=policy,
        plan=plan,
        keep_fp32=keep_fp32,
        op_fp32=op_fp32,
        low_io=low_io,
    )

    def show() -> None:
        if result.unchanged:
            print(f"{result.model}: unchanged; {result.notes[0]}")
            return
        ratio = result.model_bytes / max(result.source_bytes, 1)
        print(f"{result.model}: {result.precision.value}, {ratio:.2f} of the FP32 file ({result.model_bytes:,} bytes)")
        flops = "" if result.low_flops is None else f"{result.low_flops:.1%} of the matrix arithmetic and "
        print(f"  low: {flops}{result.low_operators} of {result.operators} decisions, policy {result.policy}")
        print(f"  {result.casts} casts, {result.bytes_cast:,} bytes cast in a run, opset {result.opset}")
        if result.weights_with_loss:
            print(f"  {result.weights_with_loss} stored tensors lost more than rounding: see the plan's ledger")
        for note in result.notes:
            print(f"  note: {note}")
        print(f"  plan: {result.plan}")

    return Outcome(result, show)
