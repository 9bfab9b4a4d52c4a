"""The training loop: the AMP engine, a recipe, and files that appear whole."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from mpdeploy import __version__
from mpdeploy.amp.engine import Engine
from mpdeploy.amp.levels import Level
from mpdeploy.amp.result import StepResult
from mpdeploy.errors import UsageError
from mpdeploy.train.checkpoint import Checkpoint, CheckpointRecord, EpochRecord, save_checkpoint
from mpdeploy.train.data import Batch, shuffled, write_feeds
from mpdeploy.train.evaluation import in_fp32, mean_score
from mpdeploy.train.loading import LoadedRecipe, blamed_on
from mpdeploy.train.resume import Configuration, Position, load_state, save_state

CHECKPOINT = "model.pt"
RESUME = "resume.pt"
CALIBRATION = "calibration"
HELD_OUT = "heldout"

_CALIBRATION_EXAMPLES = 256
_HELD_OUT_EXAMPLES = 2048
_KEPT_EXAMPLES = 4


@dataclass(frozen=True)
class Settings:
    """What a user decides about one training."""

    level: Level
    epochs: int
    seed: int = 0


@dataclass(frozen=True)
class Step:
    """One step of the loop: where it stands (from 0), its loss, and what the engine did."""

    epoch: int
    step: int
    loss: float
    result: StepResult


class Training:
    """One training of a recipe into ``folder``.

    Iterate over ``steps()`` to train, then call ``finish()``.  After each epoch `resume.pt` holds all that is
    needed to go on from there; with ``resume`` the training does.  The weights, the order of the examples and
    torch's random numbers follow from the seed alone; torch's own generator is left as it was found.

    Raises ``UsageError`` if the folder cannot be written, or there is nothing fitting to resume.
    """

    def __init__(self, loaded: LoadedRecipe, folder: Path, settings: Settings, *, resume: bool = False) -> None:
        recipe = loaded.recipe
        self._loaded, self._folder, self._settings = loaded, folder, settings
        self._configuration = Configuration(
            loaded.id, settings.level.value, settings.seed, settings.epochs, recipe.batch_size
        )
        with blamed_on(loaded.path, "when it loads its data"):
            self._data = recipe.data()
            self._check_data()
        with blamed_on(loaded.path, "when it builds the model"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self._model = recipe.model().train()
            optimizer = recipe.optimizer(self._model)
            self._random = torch.get_rng_state()
        self._engine = Engine(self._model, optimizer, settings.level)
        self._schedule: LRScheduler | None = recipe.schedule(optimizer, self.total_steps) if recipe.schedule else None
        self._position = Position()
        if resume:
            self._position, state = load_state(folder / RESUME, self._configuration)
            self._restore(state)
        else:
            # Also finds out before the work that the folder cannot be written.
            self._save()

    @property
    def total_steps(self) -> int:
        """Steps of the whole training, those before a resumption included."""
        recipe = self._loaded.recipe
        return max(len(self._data.train) // recipe.batch_size, 1) * self._settings.epochs

    @property
    def steps_left(self) -> int:
        """Steps that ``steps()`` has still to go."""
        return self.total_steps - self._position.steps_applied - self._position.steps_skipped

    def steps(self) -> Iterator[Step]:
        """Train to the end, yielding each step as it is done."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            for epoch in range(len(self._position.history), self._settings.epochs):
                losses = []
                skipped = 0
                for batch in self._batches(epoch):
                    step = self._step(epoch, batch)
                    if step.result.applied:
                        losses.append(step.loss)
                    else:
                        skipped += 1
                    yield step
                self._end_epoch(losses, skipped)

    def finish(self) -> CheckpointRecord:
        """Write `model.pt`, `calibration/` and `heldout/`; return the checkpoint's record."""
        recipe, position = self._loaded.recipe, self._position
        kept = self._data.held_out.batch(range(min(_KEPT_EXAMPLES, len(self._data.held_out))))
        record = CheckpointRecord(
            recipe=self._loaded.id,
            inputs=recipe.inputs,
            outputs=recipe.outputs,
            level=self._settings.level.value,
            seed=self._settings.seed,
            epochs=self._settings.epochs,
            metric_name=recipe.metric.name,
            metric=position.history[-1].metric,
            steps_applied=position.steps_applied,
            steps_skipped=position.steps_skipped,
            history=position.history,
            mpdeploy_version=__version__,
            torch_version=str(torch.__version__),
        )
        examples = dict(zip((spec.name for spec in recipe.inputs), kept.inputs, strict=True))
        size = recipe.batch_size
        for name, source, limit in (
            (CALIBRATION, self._data.train, _CALIBRATION_EXAMPLES),
            (HELD_OUT, self._data.held_out, _HELD_OUT_EXAMPLES),
        ):
            write_feeds(self._folder / name, recipe.inputs, source, size=size, limit=limit)
        weights = self._engine.state_dict()["model"]
        save_checkpoint(Checkpoint(weights, examples, record), self._folder / CHECKPOINT)
        return record

    def _batches(self, epoch: int) -> Iterator[Batch]:
        train = self._data.train
        size = self._loaded.recipe.batch_size
        for indices in shuffled(len(train), size, seed=self._settings.seed, epoch=epoch):
            yield train.batch(indices)

    def _step(self, epoch: int, batch: Batch) -> Step:
        recipe, position = self._loaded.recipe, self._position
        with blamed_on(self._loaded.path, "in a training step"):
            with self._engine.forward():
                outputs = self._model(*batch.inputs)
            loss = recipe.loss(in_fp32(outputs), batch.labels)
            self._engine.backward(loss)
        result = self._engine.step(clip_norm=recipe.clip_norm)
        number = position.steps_applied + position.steps_skipped
        if result.applied:
            self._position = replace(position, steps_applied=position.steps_applied + 1)
            if self._schedule:
                self._schedule.step()
        else:
            self._position = replace(position, steps_skipped=position.steps_skipped + 1)
        return Step(epoch, number, float(loss.detach()), result)

    def _end_epoch(self, losses: list[float], skipped: int) -> None:
        recipe = self._loaded.recipe
        with blamed_on(self._loaded.path, "when it is evaluated"), self._engine.full_precision():
            metric = mean_score(self._model, self._data.held_out, recipe.metric.score, recipe.batch_size)
        mean = math.fsum(losses) / len(losses) if losses else None
        record = EpochRecord(mean, metric, skipped)
        self._position = replace(self._position, history=(*self._position.history, record))
        self._random = torch.get_rng_state()
        self._save()

    def _save(self) -> None:
        state: dict[str, Any] = {"engine": self._engine.state_dict(), "random": self._random}
        if self._schedule:
            state["schedule"] = self._schedule.state_dict()
        save_state(self._folder / RESUME, self._configuration, self._position, state)

    def _restore(self, state: dict[str, Any]) -> None:
        self._engine.load_state_dict(state["engine"])
        self._random = state["random"]
        if self._schedule:
            self._schedule.load_state_dict(state["schedule"])

    def _check_data(self) -> None:
        recipe = self._loaded.recipe
        for what, examples in (("training", self._data.train), ("held-out", self._data.held_out)):
            if not len(examples):
                raise UsageError(f"the recipe has no {what} examples", where=str(self._loaded.path))
            sizes: dict[str, int] = {}
            batch = examples.batch(range(min(recipe.batch_size, len(examples))))
            if len(batch.inputs) != len(recipe.inputs):
                raise UsageError(
                    f"{len(batch.inputs)} arrays of {what} examples for {len(recipe.inputs)} inputs",
                    where=str(self._loaded.path),
                )
            for spec, value in zip(recipe.inputs, batch.inputs, strict=True):
                dtype = str(value.dtype).removeprefix("torch.")
                spec.check(dtype, tuple(value.shape), sizes, where=str(self._loaded.path))
