"""The training loop: the AMP engine, a recipe, and files that appear whole."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from mpdeploy.amp.levels import AmpConfig, Level
from mpdeploy.amp.observer import StepObserver
from mpdeploy.amp.result import StepResult
from mpdeploy.amp.telemetry import INTERVAL, Sink, Telemetry, format_judged
from mpdeploy.errors import UsageError
from mpdeploy.numerics.telemetry import StepLine, TelemetryHeader
from mpdeploy.train.assembly import assemble, load_data
from mpdeploy.train.checkpoint import CheckpointRecord, EpochRecord, save_checkpoint
from mpdeploy.train.checks import check_outputs
from mpdeploy.train.data import Batch, shuffled
from mpdeploy.train.evaluation import in_fp32
from mpdeploy.train.handover import BEST, CHECKPOINT, checkpoint_of, hand_over_feeds
from mpdeploy.train.loading import LoadedRecipe, blamed_on
from mpdeploy.train.measuring import measure
from mpdeploy.train.randomness import Randomness
from mpdeploy.train.states import Configuration, Position, taken_over
from mpdeploy.train.stores import store_for
from mpdeploy.train.telemetry_file import TelemetryFile
from mpdeploy.train.world import Sharding, World

TELEMETRY = "telemetry.jsonl"


@dataclass(frozen=True)
class Settings:
    """What a user decides about one training.

    States to resume from are saved after each epoch and every ``save_every`` steps; the newest ``keep`` stay.
    Every ``look_every`` steps telemetry looks closely.
    """

    precision: Level | AmpConfig | str
    epochs: int
    seed: int = 0
    save_every: int = 1000
    keep: int = 1
    look_every: int = INTERVAL
    sharding: Sharding = Sharding.DDP

    @property
    def config(self) -> AmpConfig:
        """The configuration of the precision."""
        return AmpConfig.of(self.precision)

    def __post_init__(self) -> None:
        if min(self.epochs, self.save_every, self.keep, self.look_every) < 1:
            raise UsageError("epochs, saved states and intervals are counted from 1", remedy="give larger numbers")


@dataclass(frozen=True)
class Step:
    """One step of the loop: where it stands (from 0), its loss, and what the engine did."""

    epoch: int
    step: int
    loss: float
    result: StepResult


class Training:
    """One training of a recipe into ``folder``, in one process or, in a ``world`` of several, together.

    Iterate over ``steps()`` to train, then call ``finish()``.  The newest state in `states/` holds all that is
    needed to go on from there; with ``resume`` the training does, and ends bit for bit like one that was never
    stopped.  The weights, the order of the examples and all random numbers follow from the seed alone; the
    caller's random numbers are left as they were found.  ``sink`` is told what the telemetry file is told.

    Raises ``UsageError`` if the folder cannot be written, or there is nothing fitting to resume.
    """

    def __init__(
        self,
        loaded: LoadedRecipe,
        folder: Path,
        settings: Settings,
        *,
        resume: bool = False,
        world: World = World(),  # noqa: B008 - immutable
        sink: Sink | None = None,
    ) -> None:
        recipe, config = loaded.recipe, settings.config
        self._loaded, self._folder, self._settings, self._world = loaded, folder, settings, world
        self._sink = sink
        configuration = Configuration(
            loaded.id,
            settings.config.name,
            settings.seed,
            settings.epochs,
            recipe.batch_size,
            world.size,
            settings.sharding.value,
        )
        self._data = load_data(loaded)
        self._randomness = Randomness(settings.seed)
        self._position = Position()
        self._store = store_for(folder, configuration, settings.keep, world, settings.sharding)
        saved = self._store.newest() if resume else None
        self._assembly = assemble(
            loaded, config, self.total_steps, self._randomness, world, settings.sharding, self._observer
        )
        if world.rank:
            # Built alike, but from here on each draws its own: dropout must not be the same everywhere.
            self._randomness = Randomness(settings.seed, world.rank)
        if saved:
            self._position, state = self._store.load(saved, self._state())
            with taken_over(saved):
                self._restore(state)
        header = TelemetryHeader(loaded.name, str(config), format_judged(config).value, settings.look_every)
        self._telemetry_file = (
            TelemetryFile(folder / TELEMETRY, header, self._position.telemetry_bytes) if world.leads else None
        )
        self.set_aside: Path | None = None  # where the states of an interrupted training are that was there before
        if not saved:
            self.set_aside = self._store.begin(self.total_steps)
            self.save()  # also finds out before the work that the folder cannot be written

    @property
    def total_steps(self) -> int:
        """Steps of the whole training, those before a resumption included."""
        recipe = self._loaded.recipe
        return max(len(self._data.train) // recipe.batch_size, 1) * self._settings.epochs

    @property
    def steps_left(self) -> int:
        """Steps that ``steps()`` has still to go."""
        return self.total_steps - self._position.steps

    @property
    def streak(self) -> int:
        """How many steps in a row, the newest the last, were skipped."""
        return self._assembly.engine.streak

    @property
    def scaled(self) -> bool:
        """Whether the loss is scaled."""
        return self._settings.config.scaling is not None

    @property
    def skipped(self) -> int:
        """Steps skipped so far."""
        return self._position.skipped

    def steps(self) -> Iterator[Step]:
        """Train to the end, yielding each step as it is done."""
        with self._randomness.active():
            for epoch in range(len(self._position.history), self._settings.epochs):
                for batch in self._batches(epoch):
                    step = self._step(epoch, batch)
                    if self._position.steps % self._settings.save_every == 0:
                        self.save()
                    yield step
                self._end_epoch()

    def save(self) -> None:
        """Save the present state, to resume from."""
        if self._telemetry_file:
            self._position = replace(self._position, telemetry_bytes=self._telemetry_file.bytes)
        self._store.save(self._position, self._state())

    def finish(self) -> CheckpointRecord:
        """Write `model.pt`, `calibration/` and `heldout/`; return the checkpoint's record."""
        _, measured = measure(self._assembly, self._loaded, self._data, self._world)
        settings = self._settings
        checkpoint = checkpoint_of(
            self._loaded, self._data, settings.config.name, settings.seed, settings.epochs, self._position, measured
        )
        if self._world.leads:
            hand_over_feeds(self._folder, self._loaded, self._data)
            save_checkpoint(checkpoint, self._folder / CHECKPOINT)
        self._world.wait()
        return checkpoint.record

    def _batches(self, epoch: int) -> Iterator[Batch]:
        train, size = self._data.train, self._loaded.recipe.batch_size
        order = shuffled(len(train), size, seed=self._settings.seed, epoch=epoch)
        for indices in order[self._position.batches :]:
            yield train.batch(self._world.share(indices)).to(self._world.device)

    def _step(self, epoch: int, batch: Batch) -> Step:
        recipe, parts, position = self._loaded.recipe, self._assembly, self._position
        with blamed_on(self._loaded.path, "in a training step"):
            loss = sum(
                self._backward(part, len(part.labels) / len(batch.labels)) for part in batch.parts(recipe.accumulate)
            )
        result = parts.engine.step(clip_norm=recipe.clip_norm)
        if parts.ema:
            parts.ema.update(result)
        mean = self._world.mean(loss)
        if result.applied:
            if parts.schedule:
                with blamed_on(self._loaded.path, "when its schedule steps"):
                    parts.schedule.step()
            total = None if position.epoch_loss is None else position.epoch_loss + mean
            total = total if total is not None and math.isfinite(total) else None
            self._position = replace(position, epoch_loss=total, applied=position.applied + 1)
        else:
            self._position = replace(position, epoch_skipped=position.epoch_skipped + 1, skipped=position.skipped + 1)
        self._position = replace(self._position, batches=position.batches + 1)
        return Step(epoch, position.steps, mean, result)

    def _backward(self, batch: Batch, share: float) -> float:
        """Add the gradients of a part of a step's batch; return what it adds to the step's loss."""
        recipe, parts = self._loaded.recipe, self._assembly
        with parts.engine.forward():
            outputs = parts.call(*batch.inputs)
        check_outputs(outputs, recipe.outputs)
        loss = recipe.loss(in_fp32(outputs), batch.labels) * share
        parts.engine.backward(loss)
        return float(loss.detach())

    def _end_epoch(self) -> None:
        position, better = self._position, self._loaded.recipe.metric.better
        metric, measured = measure(self._assembly, self._loaded, self._data, self._world)
        counted = position.batches - position.epoch_skipped
        mean = position.epoch_loss / counted if position.epoch_loss is not None and counted else None
        earlier = [record.metric for record in position.history]
        history = (*position.history, EpochRecord(mean, metric, position.epoch_skipped))
        self._position = replace(position, history=history, batches=0, epoch_loss=0.0, epoch_skipped=0)
        if self._world.leads and all(better(metric, other) for other in earlier):
            settings, epoch = self._settings, len(history)
            best = checkpoint_of(
                self._loaded, self._data, settings.config.name, settings.seed, epoch, self._position, measured
            )
            save_checkpoint(best, self._folder / BEST)
        self.save()

    def _observer(self, model: nn.Module) -> StepObserver | None:
        if not self._world.leads:
            return None
        return Telemetry(
            model,
            format_judged(self._settings.config),
            self._tell,
            interval=self._settings.look_every,
            place=lambda: (self._position.steps, self._position.skipped),
        )

    def _tell(self, line: StepLine) -> None:
        if self._telemetry_file:
            self._telemetry_file.write(line)
        if self._sink:
            self._sink(line)

    def _state(self) -> dict[str, Any]:
        parts = self._assembly
        state: dict[str, Any] = {
            "engine": parts.engine.state_dict(),
            "random": self._world.gather(self._randomness.state_dict()),
        }
        if parts.schedule:
            state["schedule"] = parts.schedule.state_dict()
        if parts.ema:
            state["average"] = parts.ema.state_dict()
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        parts = self._assembly
        parts.engine.load_state_dict(state["engine"])
        self._randomness.load_state_dict(state["random"][self._world.rank])
        if parts.schedule:
            parts.schedule.load_state_dict(state["schedule"])
        if parts.ema:
            parts.ema.load_state_dict(state["average"])
