"""From a checkpoint file to a module that can run: safely, in FP32, on the CPU."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from mpdeploy.errors import UsageError
from mpdeploy.train.assembly import load_data
from mpdeploy.train.checkpoint import Checkpoint, CheckpointRecord, load_checkpoint
from mpdeploy.train.handover import Measured, checkpoint_of
from mpdeploy.train.loading import blamed_on, find_recipe, load_recipe
from mpdeploy.train.specs import TensorSpec

_SHOWN = 3


@dataclass(frozen=True)
class LoadedModule:
    """A module ready for export: in eval mode, FP32, on the CPU, without gradients.

    ``examples`` holds real examples by input name; their first axes agree.  ``inputs`` gives names, dtypes and
    shapes with the names of dynamic axes.
    """

    module: nn.Module
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    examples: dict[str, torch.Tensor]
    record: CheckpointRecord

    @property
    def arguments(self) -> tuple[torch.Tensor, ...]:
        """The examples in the order in which the module takes them."""
        return tuple(self.examples[spec.name] for spec in self.inputs)


def load_module(checkpoint: Path, recipe: Path | None = None) -> LoadedModule:
    """Return the model of a checkpoint of ours with its trained weights.

    ``checkpoint`` may also be a folder with the state of a training whose parameters were sharded.

    The code comes from ``recipe``, or else from the file of the recorded name in ``models/`` of the current
    folder; it is imported only if its hash is the recorded one.  Nothing in the checkpoint is executed.

    Raises ``UsageError`` if a file is missing, damaged or another one, or the weights do not fit the model;
    ``ModelError`` if the checkpoint asks for Python objects.
    """
    content = _from_shards(checkpoint, recipe) if checkpoint.is_dir() else load_checkpoint(checkpoint)
    record = content.record
    path = recipe if recipe is not None else find_recipe(record.recipe, Path())
    source = load_recipe(path, expected=record.recipe)
    with blamed_on(path, "when it builds the model"):
        model = source.recipe.model()
    _check_weights(model, content, str(checkpoint))
    sizes: dict[str, int] = {}
    for spec in record.inputs:
        if spec.name not in content.examples:
            raise UsageError(f"the checkpoint has no example of the input `{spec.name}`", where=str(checkpoint))
        example = content.examples[spec.name]
        dtype = str(example.dtype).removeprefix("torch.")
        spec.check(dtype, tuple(example.shape), sizes, where=str(checkpoint))
    model.load_state_dict(content.weights)
    model.eval().requires_grad_(False)
    return LoadedModule(model, record.inputs, record.outputs, content.examples, record)


def _from_shards(folder: Path, recipe: Path | None) -> Checkpoint:
    from mpdeploy.train.shards import read_whole  # imports much of torch.distributed

    state_record, state = read_whole(folder)
    configuration = state_record.configuration
    path = recipe if recipe is not None else find_recipe(configuration.recipe, Path())
    loaded = load_recipe(path, expected=configuration.recipe)
    weights = {**state["engine"]["model"], **state.get("average", {})}
    return checkpoint_of(
        loaded,
        load_data(loaded),
        configuration.precision,
        configuration.seed,
        configuration.epochs,
        state_record.position,
        Measured(weights, ()),
    )


def _check_weights(model: nn.Module, content: Checkpoint, where: str) -> None:
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in content.weights.items()}
    differences = [
        *(f"`{name}` is missing" for name in wanted if name not in given),
        *(f"`{name}` is not in the model" for name in given if name not in wanted),
        *(
            f"`{name}` has shape {given[name]}, the model wants {shape}"
            for name, shape in wanted.items()
            if name in given and given[name] != shape
        ),
    ]
    if differences:
        more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise UsageError(
            f"the weights do not fit the model: {'; '.join(differences[:_SHOWN])}{more}",
            where=where,
            remedy="use the recipe that the checkpoint was trained with",
        )
