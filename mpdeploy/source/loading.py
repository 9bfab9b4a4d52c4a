"""From a checkpoint of ours to a module that can run: safely, in FP32, on the CPU."""

from pathlib import Path

from mpdeploy.errors import UsageError
from mpdeploy.source.fitting import fit_weights
from mpdeploy.source.loaded import LoadedModule as LoadedModule
from mpdeploy.train.assembly import load_data
from mpdeploy.train.checkpoint import Checkpoint, load_checkpoint
from mpdeploy.train.handover import Measured, checkpoint_of
from mpdeploy.train.loading import blamed_on, find_recipe, load_recipe


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
    fit_weights(model, content.weights, str(checkpoint), "use the recipe that the checkpoint was trained with")
    sizes: dict[str, int] = {}
    for spec in record.inputs:
        if spec.name not in content.examples:
            raise UsageError(f"the checkpoint has no example of the input `{spec.name}`", where=str(checkpoint))
        example = content.examples[spec.name]
        dtype = str(example.dtype).removeprefix("torch.")
        spec.check(dtype, tuple(example.shape), sizes, where=str(checkpoint))
    model.eval().requires_grad_(False)
    return LoadedModule(model, record.inputs, record.outputs, content.examples, record.recipe.file, record)


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
