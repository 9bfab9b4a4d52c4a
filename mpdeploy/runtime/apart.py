"""No output may replace a file that the same command reads."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from pathlib import Path

from mpdeploy.errors import MpdeployError, UsageError
from mpdeploy.files import disk_faults
from mpdeploy.graph import io
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.plugins import is_plugin

_ELSEWHERE = "name another output"


def require_apart(
    outputs: Iterable[Path],
    *,
    folders: Iterable[Path] = (),
    models: Iterable[object] = (),
    others: Iterable[object] = (),
) -> None:
    """Raise ``UsageError`` that names the file if an output would replace one that is read.

    Args:
        outputs: The files that will be written.
        folders: Folders that will be written, and all of their content replaced.
        models: The models that are read, each with the files of its weights; a folder stands for what lies in it.
        others: What else is read, as its flag or argument gives it: a path, a word such as ``module.py:callable``,
            ``Feeds``.  None and arrays name no file.

    Links count as what they lead to, and hard links and names that the file system takes for the same as the same file.
    """
    whole = tuple(folders)
    written = (*outputs, *whole)
    for output in written:
        _require_possible(output)
    read = tuple(dict.fromkeys((*_named(models, _with_weights), *_named(others, lambda path: (path,)))))
    for output in written:
        lost = next(
            (path for path in read if _is_same(output, path) or (output in whole and _is_in(path, output))), None
        )
        if lost is not None:
            raise UsageError(f"the output would replace {lost}, which is read", where=str(output), remedy=_ELSEWHERE)
    for one, other in combinations(written, 2):
        if one.resolve() == other.resolve():
            raise UsageError("two outputs have the same name", where=str(one), remedy=_ELSEWHERE)


def model_outputs(model: Path) -> tuple[Path, ...]:
    """Return what saving a model to a path may replace or remove: the file, and data files that belong to it."""
    with contextlib.suppress(OSError):
        return (model, *io.data_files_of(model))
    return (model,)


def _require_possible(output: Path) -> None:
    """Refuse a name that no file can have before the work, not after it."""
    try:
        output.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        with disk_faults(output):
            raise


def _is_same(output: Path, path: Path) -> bool:
    try:
        return output.samefile(path)
    except OSError:  # one of them is not there
        return False


def _is_in(path: Path, folder: Path) -> bool:
    return folder.is_dir() and path.resolve().is_relative_to(folder.resolve())


def _named(things: Iterable[object], files_at: Callable[[Path], Iterable[Path]]) -> Iterator[Path]:
    for thing in things:
        name = thing.name if isinstance(thing, Feeds) else thing
        if not isinstance(name, str | Path):
            continue
        path = Path(str(name).rpartition(":")[0]) if is_plugin(str(name)) else Path(name)
        with contextlib.suppress(OSError):
            if path.is_dir():
                yield from (inside for inside in sorted(path.iterdir()) if inside.is_file())
            elif path.is_file():
                yield from files_at(path)


def _with_weights(path: Path) -> tuple[Path, ...]:
    try:
        return io.files_of(path)
    except MpdeployError:  # not an ONNX model, or one that its reader will refuse
        return (path,)
