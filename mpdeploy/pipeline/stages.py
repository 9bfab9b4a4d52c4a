"""Stages that are done once: their results lie in folders that are named after what they were made from.

    OUT/stages/NAME-KEY/          a finished stage; it appears whole, by one rename, and never changes
    OUT/stages/NAME-KEY.part/     one at work
    OUT/latest, OUT/release       links to finished stages, switched by one rename

A stage whose inputs are the same has the same key and is not done again.  So a run that is killed at any moment leaves
finished stages and links between them, and no link ever shows files of two runs.
"""

import contextlib
import hashlib
import json
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mpdeploy import __version__, records
from mpdeploy.errors import MpdeployError, UsageError
from mpdeploy.exchange import flush
from mpdeploy.files import disk_faults, sha256_of
from mpdeploy.locks import only_one

RECORD = "stage.json"
STAGES = "stages"
_KEY_DIGITS = 16
_PART, _GONE = ".part", ".gone"
_OURS = re.compile(rf".+-[0-9a-f]{{{_KEY_DIGITS}}}(\.part)?(-[0-9a-f]{{8}}\.gone)?")  # names of stages' folders


@dataclass(frozen=True)
class StageRecord:
    """A finished stage: what it was made from, and its files by path inside with their SHA-256."""

    name: str
    inputs: dict[str, str]
    files: dict[str, str]
    seconds: float
    tool: str = f"mpdeploy {__version__}"
    schema: str = "mpdeploy.stage/1"


@dataclass(frozen=True)
class Done:
    """A finished stage and its folder.  ``reused`` if it had been finished before."""

    folder: Path
    record: StageRecord
    reused: bool

    @property
    def digest(self) -> str:
        """A hash over the stage's files: what later stages take as their input."""
        return _digest_of(self.record.files)


@dataclass
class Workshop:
    """The folder of one pipeline, while it runs; ``used`` collects the folders of this run's stages."""

    folder: Path
    used: list[Path] = field(default_factory=list)

    def find(self, name: str, inputs: Mapping[str, str]) -> Done | None:
        """Return the finished stage that was made from these inputs, if there is one and its files are untouched."""
        folder = self._place(name, inputs)
        try:
            record = records.load(StageRecord, folder / RECORD)
        except MpdeployError:
            return None
        whole = record.inputs == dict(inputs) and _hashes(folder) == record.files
        return Done(folder, record, reused=True) if whole else None

    def done(
        self, name: str, inputs: Mapping[str, str], make: Callable[[Path, Path], None], *, goes_on: bool = False
    ) -> Done:
        """Return the stage made from these inputs, making it if need be.

        ``make(work, final)`` fills the folder ``work``, which then becomes ``final``.  With ``goes_on`` a folder
        that a killed run left is handed to it as it was, otherwise it starts empty.  Raises what ``make`` raises
        and leaves finished stages alone; ``UsageError`` if the disk is full or cannot be written.
        """
        found = self.find(name, inputs)
        if found is None:
            found = self._make(name, inputs, make, goes_on=goes_on)
        self.used.append(found.folder)
        return found

    def _make(self, name: str, inputs: Mapping[str, str], make: Callable[[Path, Path], None], *, goes_on: bool) -> Done:
        final, started = self._place(name, inputs), time.monotonic()
        work = final.with_name(final.name + _PART)
        with disk_faults(work):
            if work.exists() and not goes_on:
                shutil.rmtree(work)
            work.mkdir(parents=True, exist_ok=True)
            _sweep(work)
            try:
                make(work, final)
            except BaseException as error:
                if not goes_on:
                    shutil.rmtree(work, ignore_errors=True)
                elif isinstance(error, KeyboardInterrupt):
                    error.args = (f"what was done is kept in {work}, and the same command goes on from there",)
                raise
            record = StageRecord(name, dict(inputs), _hashes(work), round(time.monotonic() - started, 3))
            records.save(record, work / RECORD)
            flush(work)
            if final.exists():  # its files were tampered with, or it was being removed
                self._remove(final)
            work.rename(final)
        return Done(final, record, reused=False)

    def point(self, link: str, target: Path) -> Path:
        """Let ``OUT/link`` lead to a finished stage, or a folder in it, in one step; return the link's path."""
        path = self.folder / link
        with disk_faults(path):
            if path.exists() and not path.is_symlink():
                raise UsageError("a file or folder is in the way of a link", where=str(path), remedy="move it away")
            scratch = self.folder / f".{link}-{secrets.token_hex(4)}{_PART}"
            scratch.symlink_to(target.relative_to(self.folder), target_is_directory=True)
            scratch.replace(path)
        return path

    def tidy(self) -> None:
        """Remove what this run did not use and no link leads to."""
        linked = {path.resolve() for path in self.folder.iterdir() if path.is_symlink()}
        keep = {path.resolve() for path in self.used} | linked
        for path in (self.folder / STAGES).iterdir():
            if _OURS.fullmatch(path.name) and not any(kept.is_relative_to(path.resolve()) for kept in keep):
                self._remove(path)
        for path in self.folder.glob(f".*{_PART}"):
            path.unlink()

    def _place(self, name: str, inputs: Mapping[str, str]) -> Path:
        text = json.dumps({"stage": name, **inputs}, sort_keys=True)
        return self.folder / STAGES / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]}"

    def _remove(self, path: Path) -> None:
        # Out of the way first: a stage that is half removed must not look like one.
        gone = path if path.name.endswith(_GONE) else path.with_name(f"{path.name}-{secrets.token_hex(4)}{_GONE}")
        if gone != path:
            path.rename(gone)
        shutil.rmtree(gone)


@contextlib.contextmanager
def workshop(folder: Path) -> Iterator[Workshop]:
    """Yield the pipeline's folder, locked against other runs; raise ``UsageError`` if one is at work in it."""
    with only_one("pipeline", folder):
        yield Workshop(folder)


def digest_of(path: Path) -> str:
    """Return a hash of a file's content, or of all files beneath a folder with their names."""
    return _digest_of(_hashes(path)) if path.is_dir() else sha256_of(path)


def _digest_of(files: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(files), sort_keys=True).encode()).hexdigest()


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files if path != folder / RECORD}


def _sweep(work: Path) -> None:
    """Remove what a killed run was writing when it was killed (see ``mpdeploy.files``)."""
    for path in list(work.rglob(".*.part")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
