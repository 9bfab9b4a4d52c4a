"""Functions that users hand over as ``module.py:callable``."""

import contextlib
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mpdeploy.errors import UsageError
from mpdeploy.files import readable_file, sha256_of


def is_plugin(source: str) -> bool:
    """Tell whether the text names a function in a Python file."""
    path, colon, _ = source.rpartition(":")
    return bool(colon) and path.endswith(".py")


def load_plugin(source: str, what: str) -> Callable[..., Any]:
    """Return the function, or class, that ``module.py:callable`` names; ``what`` calls its kind in errors.

    Runs the module, which may import what lies beside it.  Raises ``UsageError`` if the file or the function is
    missing, or the module fails.
    """
    path_text, _, name = source.rpartition(":")
    path = Path(path_text)
    readable_file(path, f"{what} module")
    spec = importlib.util.spec_from_file_location(f"mpdeploy_{what}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError("not a Python module", where=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling inside the module look there
    try:
        with importing_from(path.parent):
            spec.loader.exec_module(module)
    except Exception as error:
        raise failed(error, what, str(path)) from error
    made = getattr(module, name, None)
    if not callable(made):
        known = sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))
        raise UsageError(
            f"the {what} module has no function {name!r}",
            where=str(path),
            remedy=f"it has {', '.join(known[:8]) or 'none'}",
        )
    return made  # type: ignore[no-any-return]


def code_digest(source: str) -> str:
    """Return a hash of the code that ``module.py:callable`` or ``package.module:callable`` may run.

    For a file that is itself, the modules beside it, and the packages beside it; for a package all of its modules.
    Nothing is imported.  What these import from elsewhere is not seen.  Empty if there is no such code.
    """
    place, _, _ = source.rpartition(":")
    digest = hashlib.sha256()
    for file in sorted(_beside(Path(place).parent) if is_plugin(source) else _of_package(place)):
        digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return digest.hexdigest()


def _beside(folder: Path) -> set[Path]:
    packages = [child for child in folder.iterdir() if (child / "__init__.py").is_file()] if folder.is_dir() else []
    return {*folder.glob("*.py"), *(file for package in packages for file in package.rglob("*.py"))}


def _of_package(name: str) -> set[Path]:
    top = name.partition(".")[0]
    with importing_from(Path()):
        spec = importlib.util.find_spec(top) if top.isidentifier() else None
    if spec is None:
        return set()
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    own = {Path(spec.origin)} if spec.origin is not None and not folders else set()
    return own | {file for folder in folders for file in folder.rglob("*.py")}


@contextlib.contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Let Python find modules in ``folder``, which the user pointed at, as it would for a script there."""
    place = str(folder.resolve())
    sys.path.insert(0, place)
    try:
        yield
    finally:
        if place in sys.path:
            sys.path.remove(place)


def failed(error: Exception, what: str, where: str) -> UsageError:
    """Return the fault to raise when a user's function fails."""
    return UsageError(
        f"the {what} function failed: {type(error).__name__}: {error}",
        where=where,
        remedy="run it by itself to see where",
    )
