"""The log of a training for Weights & Biases, offline: nothing leaves the machine until somebody syncs it."""

from collections.abc import Mapping
from pathlib import Path

from mpdeploy.errors import DependencyError
from mpdeploy.numerics.telemetry import StepLine
from mpdeploy.train.logs import scalars_of


class WandbLog:
    """Writes an offline run into ``folder``; raises ``DependencyError`` without wandb."""

    def __init__(self, folder: Path, name: str) -> None:
        try:
            import wandb
        except ImportError as error:
            raise DependencyError("Weights & Biases is not installed", remedy="pip install wandb") from error
        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project="mpdeploy", name=name, dir=str(folder), mode="offline", settings=wandb.Settings(silent=True)
        )

    def step(self, line: StepLine) -> None:
        """Write a step's numbers."""
        self._run.log(scalars_of(line), step=line.step)

    def epoch(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write an epoch's metrics."""
        found = {f"held-out/{name}": value for name, value in metrics.items() if value is not None}
        self._run.log(found, step=step)

    def close(self) -> None:
        """Write what is still to be written."""
        self._run.finish()
