"""The training loop: the AMP engine, a recipe, and files that appear whole."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from mpdeploy.amp.observer import StepObserver
from mpdeploy.amp.telemetry import Telemetry, format_judged
from mpdeploy.errors import UsageError
from mpdeploy.numerics.telemetry import StepLine, TelemetryHeader
from mpdeploy.train.accumulation import Accumulation
from mpdeploy.train.assembly import assemble, load_data
from mpdeploy.train.checkpoint import Checkpoint, CheckpointRecord, save_checkpoint
from mpdeploy.train.chronicle import RECORD, Chronicle
from mpdeploy.train.faults import AGAIN, surroundings_told
from mpdeploy.train.handover import BEST, CHECKPOINT, Measured, checkpoint_of, hand_over_feeds
from mpdeploy.train.learner import Learner
from mpdeploy.train.learner import Step as Step
from mpdeploy.train.loading import LoadedRecipe
from mpdeploy.train.logs import RunLog
from mpdeploy.train.randomness import Randomness
from mpdeploy.train.settings import Settings as Settings
from mpdeploy.train.states import Configuration, Position, StateRecord, differences, taken_over
from mpdeploy.train.stores import store_for
from mpdeploy.train.summary import record_of, session_of
from mpdeploy.train.telemetry_file import TelemetryFile
from mpdeploy.train.world import World

TELEMETRY = "telemetry.jsonl"


class Training:
    """One training of a recipe into ``folder``, in one process or, in a ``world`` of several, together.

    Iterate over ``steps()`` to train, then call ``finish()``.  The newest state in `states/` holds all that is
    needed to go on from there; with ``resume`` the training does, and ends bit for bit like one that was never
    stopped, if nothing else is changed.  At another level, with another number of processes or of epochs it goes on
    from the same FP32 weights, optimizer and averages.  The weights, the order of the examples and all random numbers
    follow from the seed alone; the caller's random numbers are left as they were found.  ``logs`` are told what the
    telemetry file is told.  ``again`` says to a user what makes the training go on.

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
        logs: Sequence[RunLog] = (),
        again: str = AGAIN,
    ) -> None:
        self._loaded, self._folder, self._settings, self._world = loaded, folder, settings, world
        self._config, self._logs, self._again = settings.config_for(loaded.recipe), logs, again
        self._looks: list[StepLine] = []  # what telemetry told of the step under way
        self.differences: tuple[str, ...] = ()  # what a training that goes on has otherwise than before
        self.set_aside: Path | None = None  # where the states of an interrupted training are that was there before
        with surroundings_told(folder, again):
            self._begin(resume=resume)

    @property
    def name(self) -> str:
        """The recipe's name."""
        return self._loaded.name

    @property
    def settings(self) -> Settings:
        """What was decided about the training."""
        return self._settings

    @property
    def configuration(self) -> str:
        """What the precision's configuration does, in one line."""
        return str(self._config)

    @property
    def world(self) -> World:
        """This process among those that train together."""
        return self._world

    @property
    def total_steps(self) -> int:
        """Steps of the whole training, those before a resumption included."""
        return self._data.train.steps() * self._settings.epochs

    @property
    def steps_left(self) -> int:
        """Steps that ``steps()`` has still to go."""
        return 0 if self._over else self.total_steps - self._learner.position.steps

    @property
    def streak(self) -> int:
        """How many steps in a row, the newest the last, were skipped."""
        return self._assembly.engine.streak

    @property
    def scaled(self) -> bool:
        """Whether the loss is scaled."""
        return self._config.scaling is not None

    @property
    def skipped(self) -> int:
        """Steps skipped so far."""
        return self._learner.position.skipped

    @property
    def parts(self) -> int:
        """In how many parts a batch goes through the model."""
        return self._learner.accumulation.parts

    @property
    def stopped(self) -> bool:
        """Whether the recipe has ended the training before its last epoch."""
        return self._learner.position.stopped

    def steps(self) -> Iterator[Step]:
        """Train to the end, yielding each step as it is done."""
        learner = self._learner
        with surroundings_told(self._folder, self._again), self._randomness.active():
            while not self._over:
                if not learner.position.stopped:
                    for batch in learner.batches():
                        step = learner.step(batch)
                        if learner.position.steps % self._settings.save_every == 0:
                            self.save()
                        yield step
                        if self.stopped:
                            break
                self._end_epoch()

    def save(self) -> None:
        """Save the present state, to resume from."""
        with surroundings_told(self._folder, self._again):
            if self._telemetry_file:
                written = self._telemetry_file.bytes
                self._learner.position = replace(self._learner.position, telemetry_bytes=written)
            self._store.save(self._learner.position, self._state())
            self._keep_record(finished=False)

    def finish(self) -> CheckpointRecord:
        """Write `model.pt`, `calibration/` and `heldout/`; return the checkpoint's record."""
        with surroundings_told(self._folder, self._again):
            _, measured = self._learner.measure()
            checkpoint = self._checkpoint(measured)
            if self._world.leads:
                hand_over_feeds(self._folder, self._loaded, self._data)
                save_checkpoint(checkpoint, self._folder / CHECKPOINT)
            self._keep_record(finished=True)
            self._world.wait()
            return checkpoint.record

    def _begin(self, *, resume: bool) -> None:
        loaded, folder, settings, world = self._loaded, self._folder, self._settings, self._world
        self._data = load_data(loaded, settings.seed)
        self._randomness = Randomness(settings.seed)
        level, size = settings.config.name, loaded.recipe.batch_size
        configuration = Configuration(
            loaded.id, level, settings.seed, settings.epochs, size, world.size, settings.sharding.value
        )
        self._store = store_for(folder, configuration, settings.keep, world, settings.sharding)
        saved = self._store.newest() if resume else None
        parts, widening = settings.parts_for(loaded.recipe, world)
        patterns = settings.checkpointing or tuple(loaded.recipe.checkpointing)
        self._assembly = assemble(
            loaded,
            self._config,
            self.total_steps,
            self._randomness,
            world,
            settings.sharding,
            self._observer,
            patterns,
        )
        if world.rank:
            # Built alike, but from here on each draws its own: dropout must not be the same everywhere.
            self._randomness = Randomness(settings.seed, world.rank)
        position = Position()
        if saved:
            record, state = self._store.load(saved, self._state())
            self.differences = differences(record.configuration, configuration)
            with taken_over(saved):
                position = self._restore(record, state)
        self._learner = Learner(
            loaded,
            self._data,
            self._assembly,
            Accumulation(
                loaded, self._assembly, self._randomness, (widening and position.parts) or parts, widening=widening
            ),
            world,
            position,
            self._looks,
            self._tell,
        )
        self._chronicle = Chronicle(folder / RECORD, position.steps, resumed=saved is not None)
        header = TelemetryHeader(loaded.name, str(self._config), format_judged(self._config).value, settings.look_every)
        self._telemetry_file = (
            TelemetryFile(folder / TELEMETRY, header, position.telemetry_bytes) if world.leads else None
        )
        self._open(fresh=saved is None)

    def _open(self, *, fresh: bool) -> None:
        """Write the first files, which also finds out before the work whether the folder can be written."""
        if fresh:
            self.set_aside = self._store.begin(self.total_steps)
        try:
            if fresh:
                self.save()
            if self._telemetry_file:
                self._telemetry_file.begin()
        except UsageError:
            if self.set_aside:
                self._store.give_back()
            raise

    @property
    def _over(self) -> bool:
        position = self._learner.position
        return len(position.history) >= self._settings.epochs or (position.stopped and not position.batches)

    def _end_epoch(self) -> None:
        metrics, measured = self._learner.end_epoch()
        if self._world.leads and self._learner.since_best() == 0:
            save_checkpoint(self._checkpoint(measured), self._folder / BEST)
        for log in self._logs:
            log.epoch(self._learner.position.steps, metrics)
        self.save()

    def _checkpoint(self, measured: Measured) -> Checkpoint:
        settings, position = self._settings, self._learner.position
        return checkpoint_of(
            self._loaded,
            self._data,
            settings.config.name,
            settings.seed,
            len(position.history),
            position,
            measured,
            self._config.fp32_modules,
        )

    def _keep_record(self, *, finished: bool) -> None:
        if self._world.leads:
            position, parts = self._learner.position, self.parts
            record = record_of(
                self._loaded, self._settings, self._assembly, position, self.total_steps, finished=finished
            )
            self._chronicle.save(record, session_of(self._settings, self._config, self._world, position.steps, parts))

    def _observer(self, model: nn.Module) -> StepObserver | None:
        if not self._world.leads:
            return None
        return Telemetry(
            model,
            format_judged(self._config),
            self._looks.append,
            interval=self._settings.look_every,
            place=lambda: (self._learner.position.steps, self._learner.position.skipped),
        )

    def _tell(self, line: StepLine) -> None:
        if self._telemetry_file:
            self._telemetry_file.write(line)
        for log in self._logs:
            log.step(line)

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

    def _restore(self, record: StateRecord, state: dict[str, Any]) -> Position:
        """Take over a saved state; return where the training stands."""
        parts, epochs = self._assembly, self._settings.epochs
        other_length = epochs != record.configuration.epochs
        groups = parts.catch_up(record.position.applied) if other_length else []
        parts.engine.load_state_dict(state["engine"])
        if parts.schedule and not groups:
            parts.schedule.load_state_dict(state["schedule"])
        parts.set_groups(groups)  # what is left of the way is that of a training of the new length
        if self._world.rank < len(state["random"]):
            self._randomness.load_state_dict(state["random"][self._world.rank])
        if parts.ema:
            parts.ema.load_state_dict(state["average"])
        longer = epochs > record.configuration.epochs
        return replace(record.position, stopped=False) if longer else record.position


def to_the_end(training: Training) -> None:
    """Train without a word."""
    for _ in training.steps():
        pass
