"""What a recipe's functions return, held against what a recipe promises, before torch stumbles over it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from mpdeploy.errors import UsageError
from mpdeploy.train.data import Batch, Source
from mpdeploy.train.recipe import Data, Recipe
from mpdeploy.train.sources import Sources, source_of


def check_data(data: Any, recipe: Recipe, seed: int) -> Sources:
    """Return the two sets of examples in ``data``; raise ``UsageError`` unless they fit the recipe."""
    if not isinstance(data, Data):
        raise UsageError(f"the recipe's data() returns {_kind(data)}", remedy="return Data(train, held_out)")
    size = getattr(data.train, "batch_size", recipe.batch_size)  # a DataLoader has one of its own
    if isinstance(size, int) and size != recipe.batch_size:
        raise UsageError(
            f"the DataLoader of the training examples has a batch_size of {size}, the recipe one of "
            f"{recipe.batch_size}",
            remedy="give both the same",
        )
    train = _source(data.train, "training", recipe, seed, recipe.steps_per_epoch)
    train.steps()  # some cannot say
    return Sources(train, _source(data.held_out, "held-out", recipe, seed, None))


def _source(examples: Any, what: str, recipe: Recipe, seed: int, steps: int | None) -> Source:
    names = tuple(spec.name for spec in recipe.inputs)
    called = f"{what} examples"
    source = source_of(examples, names, batch_size=recipe.batch_size, seed=seed, steps=steps, what=called)
    batch = source.peek(recipe.batch_size)
    if not isinstance(batch, Batch) or not all(isinstance(v, torch.Tensor) for v in (*batch.inputs, batch.labels)):
        raise UsageError(
            f"a batch of {what} examples is {_kind(batch)}", remedy="return Batch((tensor, …), labels), of tensors"
        )
    if len(batch.inputs) != len(recipe.inputs):
        raise UsageError(f"{len(batch.inputs)} arrays of {what} examples for {len(recipe.inputs)} inputs")
    sizes: dict[str, int] = {}
    for spec, value in zip(recipe.inputs, batch.inputs, strict=True):
        spec.check(str(value.dtype).removeprefix("torch."), tuple(value.shape), sizes, where="")
    return source


def check_model(model: Any) -> nn.Module:
    """Return the model; raise ``UsageError`` if it is none, or a wrapper that no export sees through."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"the recipe's model() returns {_kind(model)}", remedy="return an nn.Module")
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        raise UsageError(
            f"the recipe's model() returns {_kind(model)}, which an export cannot take",
            remedy="return the plain module; torchrun spreads it over processes",
        )
    if hasattr(model, "_orig_mod"):  # torch.compile's wrapper, whose module takes long to import
        raise UsageError(
            "the recipe's model() returns what torch.compile() made, which an export cannot take",
            remedy="call model.compile() and return the model",
        )
    return model


def check_optimizer(optimizer: Any) -> Any:
    """Return the optimizer, or several; raise ``UsageError`` if it is none."""
    several = optimizer if isinstance(optimizer, (list, tuple)) and optimizer else (optimizer,)
    for one in several:
        if not isinstance(one, Optimizer):
            raise UsageError(
                f"the recipe's optimizer(model) returns {_kind(one)}", remedy="return an optimizer of torch.optim"
            )
    return optimizer


def check_schedule(schedule: Any, recipe: Recipe) -> LRScheduler | None:
    """Return the schedule; raise ``UsageError`` if it is none, or waits for the wrong end of the metric."""
    if isinstance(schedule, ReduceLROnPlateau) and (schedule.mode == "max") != recipe.higher_is_better:
        right = "max" if recipe.higher_is_better else "min"
        raise UsageError(
            f"the recipe's schedule waits for a {schedule.mode}imum of `{recipe.metric_names[0]}`",
            remedy=f'give ReduceLROnPlateau mode="{right}"',
        )
    if schedule is not None and not isinstance(schedule, LRScheduler):
        raise UsageError(
            f"the recipe's schedule(optimizer, steps) returns {_kind(schedule)}",
            remedy="return one of torch.optim.lr_scheduler",
        )
    return schedule


def check_outputs(outputs: Any, names: tuple[str, ...]) -> None:
    """Raise ``UsageError`` unless a model's outputs are a tensor or a tuple of them, as many as have names."""
    count = _count(outputs)
    if count != len(names):
        raise UsageError(
            f"the model returns {count} tensors, the recipe's outputs are {list(names)}", remedy="name each of them"
        )


def check_scores(score: Callable[[Any, torch.Tensor], Any], outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the scores of a batch; raise ``UsageError`` unless there is one number for each example."""
    scores = score(outputs, labels)
    if not isinstance(scores, torch.Tensor) or scores.shape != (len(labels),):
        given = list(scores.shape) if isinstance(scores, torch.Tensor) else _kind(scores)
        raise UsageError(
            f"the metric's score is {given} for {len(labels)} examples", remedy="return one number for each, shape (n,)"
        )
    return scores


def _count(outputs: Any) -> int:
    if isinstance(outputs, tuple):
        return sum(_count(output) for output in outputs)
    if not isinstance(outputs, torch.Tensor):
        raise UsageError(f"the model returns {_kind(outputs)}", remedy="return a tensor, or a tuple of them")
    return 1


def _kind(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"an {name}" if name[0].lower() in "aeiou" else f"a {name}"
