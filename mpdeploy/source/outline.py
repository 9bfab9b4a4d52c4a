"""What a torch file holds, without torch and without its numbers: nested tables with a mark for each tensor."""

import io
import pickle
from pathlib import Path
from typing import Any

from mpdeploy.archive import opened
from mpdeploy.source.pickles import require_sound

_LONGEST = 1 << 26  # bytes of a pickle that is looked through


class Marked:
    """Stands for a tensor."""


class _Other:
    """Stands for any other object, whatever is done to it."""

    def __init__(self, *args: object) -> None:
        self.args = args

    def __call__(self, *args: object) -> "_Other":
        return _Other()

    def __setstate__(self, state: object) -> None:
        """Forget the state."""


class _Table(dict[Any, Any]):
    """Stands for a dictionary of any kind, whatever else it remembers."""

    def __setstate__(self, state: object) -> None:
        """Forget the state: state dicts keep versions there."""


class _Outliner(pickle.Unpickler):
    """Makes marks of all that a pickle asks for: nothing of the file's, and nothing of torch, is imported."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a mark's maker in the place of a class or a function."""
        if name == "OrderedDict":
            return _Table
        return _rebuilt if module.startswith("torch") and name.startswith("_rebuild") else _Other

    def persistent_load(self, pid: object) -> Any:
        """Return a mark for a storage."""
        return _Other()


def _rebuilt(*args: object) -> Marked:
    return Marked()


def outline_of(path: Path) -> object:
    """Return what a zipped torch file holds: nested dictionaries and lists, with ``Marked`` for tensors.

    The archive must be sound.  Returns None for a file that is not read this way: too large a pickle, or one that
    does not make sense without its classes.  Raises ``UsageError`` for a pickle that no reader should be given.
    """
    with opened(path) as archive:
        names = [name for name in archive.namelist() if name.rpartition("/")[2] == "data.pkl"]
        if len(names) != 1 or archive.getinfo(names[0]).file_size > _LONGEST:
            return None
        content = archive.read(names[0])
    require_sound(io.BytesIO(content), str(path))
    try:
        return _Outliner(io.BytesIO(content)).load()
    except Exception:  # noqa: BLE001 - marks take the place of classes of any behaviour
        return None
