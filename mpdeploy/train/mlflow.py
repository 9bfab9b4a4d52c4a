"""The log of a training for MLflow, in a database beside the checkpoint."""

from collections.abc import Mapping
from pathlib import Path

from mpdeploy.errors import DependencyError
from mpdeploy.numerics.telemetry import StepLine
from mpdeploy.train.logs import scalars_of

_WAITING = 200  # numbers that are written together


class MlflowLog:
    """Writes a run into ``folder``, which `mlflow ui --backend-store-uri` opens; ``DependencyError`` without MLflow."""

    def __init__(self, folder: Path, name: str) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric
        except ImportError as error:
            raise DependencyError("MLflow is not installed", remedy="pip install mlflow") from error
        folder.mkdir(parents=True, exist_ok=True)
        self._client, self._metric = MlflowClient(f"sqlite:///{(folder / 'mlflow.db').resolve()}"), Metric
        known = self._client.get_experiment_by_name("mpdeploy")
        home = (folder / "artifacts").resolve().as_uri()
        experiment = known.experiment_id if known else self._client.create_experiment("mpdeploy", home)
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        self._waiting: list[object] = []

    def step(self, line: StepLine) -> None:
        """Take a step's numbers, to be written with some others."""
        self._take(scalars_of(line), line.step)

    def epoch(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Write an epoch's metrics."""
        self._take({f"held-out/{name}": value for name, value in metrics.items() if value is not None}, step)
        self._write()

    def close(self) -> None:
        """Write what is still to be written, and end the run."""
        self._write()
        self._client.set_terminated(self._run)

    def _take(self, values: Mapping[str, float], step: int) -> None:
        import time

        now = int(time.time() * 1000)
        self._waiting += [self._metric(_plain(name), value, now, step) for name, value in values.items()]
        if len(self._waiting) >= _WAITING:
            self._write()

    def _write(self) -> None:
        for start in range(0, len(self._waiting), 1000):  # as many as one call takes
            self._client.log_batch(self._run, metrics=self._waiting[start : start + 1000])
        self._waiting = []


def _plain(name: str) -> str:
    """The name with the signs that MLflow allows."""
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)
