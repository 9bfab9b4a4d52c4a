"""What a training hands over: checkpoints, and examples as feeds for calibrating and verifying."""

from dataclasses import dataclass
from pathlib import Path

import torch

from mpdeploy import __version__
from mpdeploy.numerics.telemetry import ModuleRange
from mpdeploy.train.checkpoint import Checkpoint, CheckpointRecord
from mpdeploy.train.feeds import write_feeds
from mpdeploy.train.loading import LoadedRecipe
from mpdeploy.train.sources import Sources
from mpdeploy.train.states import Position

CHECKPOINT = "model.pt"
BEST = "best.pt"
CALIBRATION = "calibration"
HELD_OUT = "heldout"

_CALIBRATION_EXAMPLES = 256
_HELD_OUT_EXAMPLES = 2048
_KEPT_EXAMPLES = 4


@dataclass(frozen=True)
class Measured:
    """Some FP32 weights, by name, and the ranges that were measured with them."""

    weights: dict[str, torch.Tensor]
    ranges: tuple[ModuleRange, ...]


def checkpoint_of(
    loaded: LoadedRecipe,
    data: Sources,
    level: str,
    seed: int,
    epochs: int,
    position: Position,
    measured: Measured,
    fp32_modules: tuple[str, ...],
) -> Checkpoint:
    """Return the checkpoint of the position's last epoch."""
    recipe = loaded.recipe
    kept = data.held_out.peek(_KEPT_EXAMPLES)
    last = position.history[-1] if position.history else None
    record = CheckpointRecord(
        recipe=loaded.id,
        inputs=recipe.inputs,
        outputs=recipe.outputs,
        level=level,
        seed=seed,
        epochs=epochs,
        metric_name=recipe.metric_names[0],
        metric=last.metric if last else None,
        steps_applied=position.applied,
        steps_skipped=position.skipped,
        history=position.history,
        ranges=measured.ranges,
        ema_decay=recipe.ema_decay,
        mpdeploy_version=__version__,
        torch_version=str(torch.__version__),
        metrics=last.metrics if last else {},
        fp32_modules=fp32_modules,
    )
    examples = dict(zip((spec.name for spec in recipe.inputs), kept.inputs, strict=True))
    return Checkpoint({name: tensor.cpu() for name, tensor in measured.weights.items()}, examples, record)


def hand_over_feeds(folder: Path, loaded: LoadedRecipe, data: Sources) -> None:
    """Write `calibration/` from the training examples and `heldout/` from the held-out ones."""
    recipe = loaded.recipe
    for name, source, limit in (
        (CALIBRATION, data.train, _CALIBRATION_EXAMPLES),
        (HELD_OUT, data.held_out, _HELD_OUT_EXAMPLES),
    ):
        write_feeds(folder / name, recipe.inputs, source, size=recipe.batch_size, limit=limit)
