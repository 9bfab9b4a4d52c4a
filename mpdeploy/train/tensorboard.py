"""Telemetry for TensorBoard, where it is installed."""

from pathlib import Path

from mpdeploy.amp.telemetry import Sink
from mpdeploy.errors import DependencyError
from mpdeploy.numerics.telemetry import StepLine


def tensorboard_sink(folder: Path) -> Sink:
    """Return a sink that writes events into ``folder``; raise ``DependencyError`` without TensorBoard."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise DependencyError("TensorBoard is not installed", remedy="pip install tensorboard") from error
    writer = SummaryWriter(str(folder))

    def write(line: StepLine) -> None:
        scalars = {"loss": line.loss, "gradient norm": line.grad_norm, "loss scale": line.scale_after,
                   "skipped steps": line.skips}  # fmt: skip
        for layer in line.sample.layers if line.sample else ():
            scalars[f"zero gradients with the scale/{layer.name}"] = layer.with_scale.zero
            scalars[f"zero gradients without it/{layer.name}"] = layer.without_scale.zero
        for name, value in scalars.items():
            if value is not None:
                writer.add_scalar(name, value, line.step)
        writer.flush()

    return write
