"""The log of a training for TensorBoard, where it is installed."""

from collections.abc import Mapping
from pathlib import Path

from mpdeploy.errors import DependencyError
from mpdeploy.numerics.telemetry import StepLine
from mpdeploy.train.logs import scalars_of


class TensorBoardLog:
    """Writes events into ``folder``; raises ``DependencyError`` without TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise DependencyError("TensorBoard is not installed", remedy="pip install tensorboard") from error
        self._writer = SummaryWriter(str(folder))

    def step(self, line: StepLine) -> None:
        """Write a step's numbers."""
        for name, value in scalars_of(line).items():
            self._writer.add_scalar(name, value, line.step)

    def epoch(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write an epoch's metrics."""
        for name, value in metrics.items():
            if value is not None:
                self._writer.add_scalar(f"held-out/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is still to be written."""
        self._writer.close()
