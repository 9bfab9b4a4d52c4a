"""Finding and importing recipes.  A recipe is code: it runs only from a file that the user stands over or names."""

import contextlib
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from mpdeploy.errors import MpdeployError, UsageError
from mpdeploy.files import readable_file
from mpdeploy.train.known import is_known, remember
from mpdeploy.train.recipe import Recipe
from mpdeploy.train.surroundings import of_surroundings

MODELS = Path("models")


@dataclass(frozen=True)
class RecipeId:
    """Which recipe a checkpoint came from: the bare name of its file, and the SHA-256 of the file's bytes."""

    file: str
    sha256: str


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe and the identity of the very bytes that it was imported from."""

    id: RecipeId
    recipe: Recipe
    path: Path

    @property
    def name(self) -> str:
        """The file's name without its suffix."""
        return Path(self.id.file).stem


def load_recipe(path: str | Path, expected: RecipeId | None = None) -> LoadedRecipe:
    """Import the recipe file at ``path`` and return what it defines as ``recipe``.

    With ``expected`` nothing is imported unless the file has that hash.  The recipe counts as named from then on (see
    ``find_recipe``).  Raises ``UsageError`` if the file is missing, another one, fails to import or defines no
    ``Recipe``.
    """
    path = Path(path)
    content = readable_file(path, "recipe").read_bytes()
    identity = RecipeId(path.name, sha256(content).hexdigest())
    if expected is not None and identity.sha256 != expected.sha256:
        raise UsageError(
            f"this is not the recipe that the checkpoint was trained with: its SHA-256 is {identity.sha256[:12]}…, "
            f"the checkpoint records {expected.sha256[:12]}…",
            where=str(path),
            remedy="check out the version it was trained with, or point at it with --recipe FILE",
        )
    remember(identity.sha256)
    found = getattr(_import(path, content, identity), "recipe", None)
    if not isinstance(found, Recipe):
        raise UsageError("the file defines no recipe", where=str(path), remedy="end it with `recipe = Recipe(...)`")
    return LoadedRecipe(identity, found, path)


def find_recipe(identity: RecipeId, folder: Path) -> Path:
    """Return where the recipe of a checkpoint lies: in ``models/`` beneath ``folder``, under its recorded name.

    The name comes from a file that somebody else may have made, so it can only ever pick among the files there; who
    made it may have brought these along, too: see ``require_named``.  Raises ``UsageError`` if it is not a bare file
    name, or there is no such file.
    """
    name = identity.file
    if Path(name).name != name or not name.endswith(".py") or name.startswith(".") or "\\" in name:
        raise UsageError(
            f"the checkpoint names {name!r} as its recipe, which is not a plain file name",
            remedy="do not trust this checkpoint; to use it all the same, point at its recipe with --recipe FILE",
        )
    path = folder / MODELS / name
    if not path.is_file():
        raise UsageError(
            f"the checkpoint was trained with the recipe {name}, which is not in {MODELS}/ here",
            where=str(path),
            remedy="change to the folder it was trained in, or point at the recipe with --recipe FILE",
        )
    return path


def require_named(identity: RecipeId, path: Path) -> None:
    """Raise ``UsageError`` if a recipe that only a checkpoint asks for is none that the user has named before."""
    if not is_known(identity.sha256):
        raise UsageError(
            "the checkpoint asks for code that you have not named here before",
            where=str(path),
            remedy=f"read it, and if you trust it, say --recipe {path}",
        )


@contextlib.contextmanager
def placed_at(recipe: Path) -> Iterator[None]:
    """Let errors that say nowhere where they are name the recipe."""
    try:
        yield
    except MpdeployError as error:
        error.where = error.where or str(recipe)
        raise


@contextlib.contextmanager
def blamed_on(recipe: Path, when: str) -> Iterator[None]:
    """Turn what the recipe's own code raises inside into a ``UsageError`` that names the recipe."""
    try:
        with placed_at(recipe):
            yield
    except MpdeployError:
        raise
    except (Exception, SystemExit) as error:
        if of_surroundings(error):
            raise
        raise UsageError(
            f"the recipe fails {when}: {type(error).__name__}: {error}",
            where=str(recipe),
            remedy="--debug shows the traceback",
        ) from error


def _import(path: Path, content: bytes, identity: RecipeId) -> types.ModuleType:
    # Named by content: two recipes never share a module, and dataclasses inside find theirs in sys.modules.
    module = types.ModuleType(f"mpdeploy_recipe_{identity.sha256[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    with blamed_on(path, "when it is imported"):
        # Exactly the bytes that were hashed: a file that changes meanwhile cannot slip in.
        exec(compile(content, str(path), "exec"), module.__dict__)  # noqa: S102
    return module
