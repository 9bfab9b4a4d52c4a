"""Engine and sidecar appear together: two names cannot change in one step, so they change back to back."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from mpdeploy import records
from mpdeploy.documents import parse_json
from mpdeploy.engine.record import EngineRecord, sidecar_of
from mpdeploy.errors import UsageError
from mpdeploy.files import disk_faults, scratch_path

_SCHEMA = f"{EngineRecord.schema.partition('/')[0]}/"


def require_free(target: Path) -> None:
    """Raise ``UsageError`` if the sidecar of the engine ``target`` would replace another document.

    Such as the plan of ``low.onnx``, which has the name of the sidecar of ``low.plan``.
    """
    sidecar = sidecar_of(target)
    if sidecar.is_file() and not _is_sidecar(sidecar):
        raise UsageError(
            "the engine's sidecar would overwrite a file that is not a sidecar",
            where=str(sidecar),
            remedy="name another output",
        )


def _is_sidecar(path: Path) -> bool:
    """Whether the file is an engine's sidecar, of whatever version, or so damaged that it is no document at all."""
    try:
        document = parse_json(path.read_bytes())
    except ValueError:
        return True
    return isinstance(document, dict) and str(document.get("schema")).startswith(_SCHEMA)


def publish_engine(scratch: Path, record: EngineRecord, target: Path) -> None:
    """Put a finished engine and its sidecar in the place of those at ``target``.

    Both are on disk before either name changes.  A fault or Ctrl-C in between leaves the pair that was there before; a
    kill there leaves an engine that its sidecar does not describe, which ``read_engine`` refuses.  Raises as
    ``require_free`` does.
    """
    require_free(target)
    sidecar = sidecar_of(target)
    with scratch_path(sidecar) as described, scratch_path(sidecar) as before, disk_faults(target):
        described.write_bytes(records.to_json(record))
        _flush(scratch)
        _flush(described)
        with _alone_in(target.parent):
            if sidecar.is_file():
                before.write_bytes(sidecar.read_bytes())
            try:
                described.replace(sidecar)
                scratch.replace(target)
            except BaseException:
                if scratch.exists():  # the engine's name has not changed
                    _restore(sidecar, before)
                raise


def _restore(sidecar: Path, before: Path) -> None:
    if before.exists():
        before.replace(sidecar)
    else:
        sidecar.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other builds out while both names change, where folders can be locked; no file is left behind."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
