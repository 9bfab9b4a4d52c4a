"""From a checkpoint of ours to a module that can run: safely, in FP32, on the CPU."""

from pathlib import Path

from mpdeploy.errors import UsageError
from mpdeploy.source.fitting import fit_weights
from mpdeploy.source.loaded import LoadedModule as LoadedModule
from mpdeploy.train.assembly import load_data
from mpdeploy.train.checkpoint import Checkpoint, load_checkpoint
from mpdeploy.train.handover import Measured, checkpoint_of
from mpdeploy.train.loading import LoadedRecipe, RecipeId, blamed_on, find_recipe, load_recipe, require_named
from mpdeploy.train.states import newest, read_state


def load_module(checkpoint: Path, recipe: Path | None = None) -> LoadedModule:
    """Return the model of a checkpoint of ours with its trained weights.

    The code comes from ``recipe``, or else from the file of the recorded name in ``models/`` of the current
    folder, if it was named before; it is imported only if its hash is the recorded one.  Nothing in the checkpoint is
    executed.

    Raises ``UsageError`` if a file is missing, damaged or another one, or the weights do not fit the model;
    ``ModelError`` if the checkpoint asks for Python objects.
    """
    content = load_checkpoint(checkpoint)
    return _module_of(content, _recipe_of(content.record.recipe, recipe), checkpoint)


def load_state(path: Path, recipe: Path | None = None) -> LoadedModule:
    """Return the model as it was in a state that a training saved: a file, a folder of shards, or the newest of many.

    It has the average of the weights where the training keeps one.  Code and faults are as for ``load_module``.
    """
    found = (newest(path) or path) if path.is_dir() else path
    if found.is_dir():
        from mpdeploy.train.shards import read_whole  # imports much of torch.distributed

        state_record, state = read_whole(found)
    else:
        state_record, state = read_state(found)
    configuration = state_record.configuration
    loaded = _recipe_of(configuration.recipe, recipe)
    content = checkpoint_of(
        loaded,
        load_data(loaded),
        configuration.precision,
        configuration.seed,
        configuration.epochs,
        state_record.position,
        Measured({**state["engine"]["model"], **state.get("average", {})}, ()),
        tuple(state["engine"].get("fp32_modules", ())),
    )
    return _module_of(content, loaded, found)


def _recipe_of(identity: RecipeId, recipe: Path | None) -> LoadedRecipe:
    if recipe is not None:
        return load_recipe(recipe, expected=identity)
    found = find_recipe(identity, Path())
    require_named(identity, found)
    return load_recipe(found, expected=identity)


def _module_of(content: Checkpoint, source: LoadedRecipe, where: Path) -> LoadedModule:
    record = content.record
    with blamed_on(source.path, "when it builds the model"):
        model = source.recipe.model()
    fit_weights(model, content.weights, str(where), "use the recipe that the checkpoint was trained with")
    sizes: dict[str, int] = {}
    for spec in record.inputs:
        if spec.name not in content.examples:
            raise UsageError(f"the checkpoint has no example of the input `{spec.name}`", where=str(where))
        example = content.examples[spec.name]
        dtype = str(example.dtype).removeprefix("torch.")
        spec.check(dtype, tuple(example.shape), sizes, where=str(where))
    model.eval().requires_grad_(False)
    return LoadedModule(model, record.inputs, record.outputs, content.examples, record.recipe.file, record)
