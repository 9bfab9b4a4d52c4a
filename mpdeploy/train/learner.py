"""What a training learns, without its files: steps, the ends of epochs, and what the recipe is told of them."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch.optim.lr_scheduler import ReduceLROnPlateau

from mpdeploy.amp.result import StepResult
from mpdeploy.errors import TrainingDiverged, UsageError
from mpdeploy.numerics.telemetry import StepLine
from mpdeploy.numerics.training import EpochRecord
from mpdeploy.train.accumulation import Accumulation
from mpdeploy.train.assembly import Assembly
from mpdeploy.train.data import Batch
from mpdeploy.train.handover import Measured
from mpdeploy.train.loading import LoadedRecipe, blamed_on
from mpdeploy.train.measuring import Scores, measure
from mpdeploy.train.recipe import LOSS, SINCE_BEST, StopTraining
from mpdeploy.train.sources import Sources
from mpdeploy.train.states import Position
from mpdeploy.train.world import World


@dataclass(frozen=True)
class Step:
    """One step of the loop: where it stands (from 0), its loss, what the engine did, in how many parts."""

    epoch: int
    step: int
    loss: float
    result: StepResult
    parts: int = 1


@dataclass
class Learner:
    """Goes on from ``position``, step by step and epoch by epoch.

    ``looks`` receives what the engine's telemetry says of a step, and ``tell`` is told all of it.
    """

    loaded: LoadedRecipe
    data: Sources
    assembly: Assembly
    accumulation: Accumulation
    world: World
    position: Position
    looks: list[StepLine]
    tell: Callable[[StepLine], None]

    def batches(self) -> Iterator[Batch]:
        """Yield the batches that are left of the epoch under way, this process's share of each."""
        batches = self.data.train.epoch(len(self.position.history), self.position.batches, self.world)
        while True:
            with blamed_on(self.loaded.path, "when it loads its data"):
                batch = next(batches, None)
            if batch is None:
                break
            yield batch.to(self.world.device)
        if not self.position.batches:
            raise UsageError("the training examples gave no batch in this epoch", where=str(self.loaded.path))

    def step(self, batch: Batch) -> Step:
        """Learn from a batch."""
        recipe, parts, before = self.loaded.recipe, self.assembly, self.position
        loss, rate = self.accumulation.backward(batch), parts.learning_rate()
        self.looks.clear()
        try:
            result = parts.engine.step(clip_norm=recipe.clip_norm)
        except TrainingDiverged:
            for line in self.looks:
                self.tell(replace(line, learning_rate=rate))
            raise
        if parts.ema:
            parts.ema.update(result)
        mean = self.world.mean(loss)
        if result.applied and parts.schedule and not isinstance(parts.schedule, ReduceLROnPlateau):
            with blamed_on(self.loaded.path, "when its schedule steps"):
                parts.schedule.step()
        self._count(mean, applied=result.applied)
        self.tell(
            StepLine(
                step=before.steps,
                loss=mean if math.isfinite(mean) else None,
                grad_norm=result.grad_norm,
                scale_before=result.scale_before,
                scale_after=result.scale_after,
                skipped=not result.applied,
                skips=self.position.skipped,
                streak=result.streak,
                sample=self.looks[-1].sample if self.looks else None,
                learning_rate=rate,
            )
        )
        if recipe.on_step_end is not None:
            told = recipe.on_step_end
            self._heed(lambda: told(self.position.steps, mean), "in its on_step_end")
        return Step(len(before.history), before.steps, mean, result, self.accumulation.parts)

    def end_epoch(self) -> tuple[dict[str, float | None], Measured]:
        """Measure what the epoch came to, and begin the next; return the metrics by name, and the weights."""
        position, recipe = self.position, self.loaded.recipe
        scores, measured = self.measure()
        counted = position.batches - position.epoch_skipped
        mean = position.epoch_loss / counted if position.epoch_loss is not None and counted else None
        metrics = dict(zip(recipe.metric_names, scores, strict=True))
        history = (*position.history, EpochRecord(mean, scores[0], position.epoch_skipped, metrics))
        self.position = replace(position, history=history, batches=0, epoch_loss=0.0, epoch_skipped=0)
        schedule = self.assembly.schedule
        if isinstance(schedule, ReduceLROnPlateau) and scores[0] is not None:
            schedule.step(scores[0])
        if recipe.on_epoch_end is not None:
            told, values = recipe.on_epoch_end, {**metrics, LOSS: mean, SINCE_BEST: float(self.since_best())}
            self._heed(lambda: told(len(history), values), "in its on_epoch_end")
        return metrics, measured

    def measure(self) -> tuple[Scores, Measured]:
        """Return the metrics of the present weights, and these."""
        size = math.ceil(self.loaded.recipe.batch_size / self.accumulation.parts)
        return measure(self.assembly, self.loaded, self.data, self.world, size)

    def since_best(self) -> int:
        """Return how many epochs ago the best one was; 0 if it was the last, or none is done yet."""
        metrics: Sequence[float | None] = [record.metric for record in self.position.history]
        best = 0
        for epoch, metric in enumerate(metrics):
            if self.loaded.recipe.better(metric, metrics[best]):
                best = epoch
        return max(len(metrics) - 1 - best, 0)

    def _count(self, loss: float, *, applied: bool) -> None:
        before = self.position
        if applied:
            total = None if before.epoch_loss is None else before.epoch_loss + loss
            total = total if total is not None and math.isfinite(total) else None
            self.position = replace(before, epoch_loss=total, applied=before.applied + 1)
        else:
            self.position = replace(before, epoch_skipped=before.epoch_skipped + 1, skipped=before.skipped + 1)
        parts = self.accumulation.parts if self.accumulation.widening else 0
        self.position = replace(self.position, batches=before.batches + 1, parts=parts)

    def _heed(self, say: Callable[[], None], when: str) -> None:
        """Tell the recipe something; it may answer that the training ends here."""
        wish = False
        with blamed_on(self.loaded.path, when):
            try:
                say()
            except StopTraining:
                wish = True
        if self.world.any(wish):
            self.position = replace(self.position, stopped=True)
