"""Which recipes this user has named before: only these may run again where nobody names them.

A checkpoint says which recipe it needs, and a folder from a stranger may bring both along.  So a recipe found by that
name runs only if the very same code was once named: to `mpdeploy train`, with ``--recipe``, or from Python.
"""

import contextlib
import os
from pathlib import Path


def remember(sha256: str) -> None:
    """Keep the hash of a recipe that was named; where nothing can be kept it will have to be named again."""
    with contextlib.suppress(OSError, RuntimeError):  # no home, or none to write to
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / sha256).touch()


def is_known(sha256: str) -> bool:
    """Tell whether a recipe of that hash was named before."""
    with contextlib.suppress(OSError, RuntimeError):
        return (_folder() / sha256).is_file()
    return False


def _folder() -> Path:
    # Where programs keep what they learn: https://specifications.freedesktop.org/basedir-spec
    given = os.environ.get("XDG_STATE_HOME", "")
    home = Path(given) if Path(given).is_absolute() else Path.home() / ".local" / "state"
    return home / "mpdeploy" / "recipes"
