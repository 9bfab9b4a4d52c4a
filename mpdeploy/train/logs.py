"""What may be told of a training while it goes on: the run logs of other tools, beside our own telemetry."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from mpdeploy.errors import UsageError
from mpdeploy.numerics.telemetry import StepLine

LOGS = ("tensorboard", "wandb", "mlflow")


class RunLog(Protocol):
    """Is told of each step and each epoch, and closed at the end, however that comes."""

    def step(self, line: StepLine) -> None:
        """Take what telemetry says of a step."""
        ...

    def epoch(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Take the metrics of an epoch that ended before ``step``; what is not finite is None."""
        ...

    def close(self) -> None:
        """Write what is still to be written."""
        ...


def open_log(kind: str, folder: Path, name: str) -> RunLog:
    """Return a log for the training ``name`` that writes into the folder ``kind`` in ``folder``.

    Raises ``DependencyError`` if its library is not installed, and ``UsageError`` for an unknown kind.
    """
    if kind == "tensorboard":
        from mpdeploy.train.tensorboard import TensorBoardLog

        return TensorBoardLog(folder / kind)
    if kind == "wandb":
        from mpdeploy.train.wandb import WandbLog

        return WandbLog(folder / kind, name)
    if kind == "mlflow":
        from mpdeploy.train.mlflow import MlflowLog

        return MlflowLog(folder / kind, name)
    raise UsageError(f"there is no log `{kind}`", remedy=f"choose among {', '.join(LOGS)}")


def scalars_of(line: StepLine) -> dict[str, float]:
    """Return what a line says as numbers by name; what is not finite is left out."""
    found: dict[str, float | None] = {
        "loss": line.loss,
        "learning rate": line.learning_rate,
        "gradient norm": line.grad_norm,
        "loss scale": line.scale_after,
        "skipped steps": line.skips,
    }
    for layer in line.sample.layers if line.sample else ():
        found[f"zero gradients with the scale/{layer.name}"] = layer.with_scale.zero
        found[f"zero gradients without it/{layer.name}"] = layer.without_scale.zero
    return {name: float(value) for name, value in found.items() if value is not None}
