"""Releases on a machine that serves: all versions side by side, one of them current, and the history of that choice.

STORE/versions/VERSION/   the bundles
STORE/current             a link to the current one, replaced in one step
STORE/history.json        who made which version current, when and why
STORE/key.pem             the public key that signs its bundles, from the first promotion with a key on
"""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

from filelock import FileLock

from mpdeploy import records
from mpdeploy.bundle.check import check_bundle
from mpdeploy.bundle.manifest import MANIFEST, Manifest, is_name
from mpdeploy.errors import UsageError, VerificationFailed, named_in
from mpdeploy.files import atomic_folder, readable_file, sha256_of, write_bytes

_VERSIONS, _CURRENT, _HISTORY, _KEY = "versions", "current", "history.json", "key.pem"


class Action(Enum):
    """How a version became current."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"


@dataclass(frozen=True)
class Entry:
    """One change: ``version`` became current instead of ``previous`` (empty at first).

    ``when`` is a UTC time in ISO 8601, ``manifest`` the SHA-256 of the version's manifest.
    """

    action: Action
    version: str
    previous: str
    who: str
    when: str
    why: str
    manifest: str


@dataclass(frozen=True)
class History:
    """Every change of a store, oldest first."""

    entries: tuple[Entry, ...] = ()
    schema: str = "mpdeploy.history/1"


@dataclass(frozen=True)
class Store:
    """A folder of releases.

    ``key``: bundles must be signed by the owner of this ed25519 public key; the store remembers it, and demands it from
    then on, whether it is given again or not.
    """

    folder: Path
    key: Path | None = None

    def current(self) -> str:
        """Return the current version; empty if there is none."""
        link = self.folder / _CURRENT
        return link.readlink().name if link.is_symlink() else ""

    def history(self) -> History:
        """Return every change that took effect."""
        path = self.folder / _HISTORY
        try:
            entries = records.load(History, path).entries if path.is_file() else ()
        except UsageError as error:
            raise UsageError(
                f"the store's history cannot be read: {error.what}",
                where=str(path),
                remedy="bring it back from a backup; without the file, the history begins anew with the next promotion",
            ) from error
        # An entry is written ahead of the change; one whose process was killed in between tells of nothing.
        return History(entries[:-1] if entries and entries[-1].version != self.current() else entries)

    def promote(self, bundle: Path, *, who: str, why: str) -> Entry:
        """Take the bundle into the store and make its version current, in one step for those who read ``current``.

        Returns the entry in the history.  Raises ``VerificationFailed`` if the bundle changed since it was packed or
        its verdict is not a pass, ``UsageError`` if another bundle has that version or it is current already.
        """
        key = self._demanded()
        manifest = check_bundle(bundle, key)
        _require_pass(manifest, bundle)
        _require_words(who, why)
        with self._locked():
            self._tidy()
            if self.current() == manifest.version:
                raise UsageError(f"version {manifest.version} is the current one already", where=str(self.folder))
            self._take_in(bundle, manifest.version, key)
            self._remember(key)
            return self._switch(Action.PROMOTE, manifest.version, who, why)

    def _demanded(self) -> Path | None:
        """The key that bundles must be signed by: the one that was given, or that the store remembers."""
        known = self.folder / _KEY
        if not known.is_file():
            return self.key
        if self.key is not None and readable_file(self.key, "public key").read_bytes() != known.read_bytes():
            raise UsageError(
                "the store demands another key",
                where=str(self.key),
                remedy=f"give the key in {known}, or replace that file if its bundles have a new signer",
            )
        return known

    def _remember(self, key: Path | None) -> None:
        known = self.folder / _KEY
        if key is not None and not known.is_file():
            write_bytes(known, key.read_bytes())

    def rollback(self, *, who: str, why: str, to: str = "") -> Entry:
        """Make the version current that was so before the present one, or the version ``to``.

        Its files are checked anew.  Returns the entry in the history.  Raises ``UsageError`` if there is none to go
        back to, ``VerificationFailed`` if it is damaged.
        """
        _require_words(who, why)
        if not self.folder.is_dir():
            raise UsageError(
                "there is no such store",
                where=str(self.folder),
                remedy="'mpdeploy promote' makes one with its first release",
            )
        with self._locked():
            version = to or self._before()
            home = self.folder / _VERSIONS / version
            if version == self.current() or not is_name(version) or not home.is_dir():
                known = sorted(path.name for path in (self.folder / _VERSIONS).glob("*") if is_name(path.name))
                raise UsageError(
                    f"cannot go back to version {version!r}",
                    where=str(self.folder),
                    remedy=f"the current one is {self.current() or 'none'}, there are {', '.join(known) or 'none'}",
                )
            _require_release(check_bundle(home, self._demanded()), version, home)
            return self._switch(Action.ROLLBACK, version, who, why)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock(self.folder / ".lock")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except OSError as error:
            raise UsageError(
                f"the store cannot be written: {error.strerror}", where=str(self.folder), remedy="choose another folder"
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _tidy(self) -> None:
        """Remove what killed processes left half-copied: whoever holds the lock is the only one at work."""
        for path in (self.folder / _VERSIONS).glob(".*"):
            shutil.rmtree(path, ignore_errors=True)
        for link in self.folder.glob(f".{_CURRENT}.*"):
            link.unlink(missing_ok=True)

    def _take_in(self, bundle: Path, version: str, key: Path | None) -> None:
        """Copy the bundle, and judge the copy: what it was copied from may have been exchanged since it was checked."""
        home = self.folder / _VERSIONS / version
        if home.is_dir():
            _require_release(check_bundle(home, key), version, home)
            if sha256_of(home / MANIFEST) != sha256_of(bundle / MANIFEST):
                raise UsageError(
                    f"the store holds another bundle as version {version}",
                    where=str(bundle),
                    remedy="pack it with another --version",
                )
            return
        with atomic_folder(home) as scratch, named_in(scratch, bundle):
            _copy(bundle, scratch)
            _require_release(check_bundle(scratch, key), version, bundle)

    def _switch(self, action: Action, version: str, who: str, why: str) -> Entry:
        entry = Entry(
            action=action,
            version=version,
            previous=self.current(),
            who=who,
            when=datetime.now(UTC).isoformat(timespec="seconds"),
            why=why,
            manifest=sha256_of(self.folder / _VERSIONS / version / MANIFEST),
        )
        before = self.history()
        # The link decides.  The entry is written first, and taken back if the link cannot be replaced.
        records.save(History((*before.entries, entry)), self.folder / _HISTORY)
        link = self.folder / _CURRENT
        scratch = link.with_name(f".{_CURRENT}.{secrets.token_hex(4)}")
        try:
            scratch.symlink_to(Path(_VERSIONS) / version, target_is_directory=True)
            scratch.replace(link)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            records.save(before, self.folder / _HISTORY)
            raise UsageError(
                f"the current version cannot be changed: {error.strerror}",
                where=str(link),
                remedy="use a file system with symbolic links",
            ) from error
        return entry

    def _before(self) -> str:
        """The version that going back leads to: promotions pile up, going back takes them off again."""
        pile: list[str] = []
        for entry in self.history().entries:
            if entry.action is Action.PROMOTE:
                pile.append(entry.version)
            else:
                while pile and pile[-1] != entry.version:
                    pile.pop()
        if len(pile) < 2:
            raise UsageError("there is no release before the current one", where=str(self.folder))
        return pile[-2]


def _copy(bundle: Path, folder: Path) -> None:
    """Copy the files of a bundle; those that share their bytes in it share them in the copy, too."""
    copied: dict[tuple[int, int], Path] = {}
    for path in sorted(bundle.rglob("*")):
        target = folder / path.relative_to(bundle)
        if path.is_dir() and not path.is_symlink():
            target.mkdir()
            continue
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode):
            raise UsageError("only files can be taken into the store", where=str(path), remedy="get the bundle again")
        there = copied.setdefault((state.st_dev, state.st_ino), target)
        if there is target or not _linked(there, target):
            shutil.copyfile(path, target)


def _linked(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except OSError:  # not every file system has links
        return False
    return True


def _require_words(who: str, why: str) -> None:
    for flag, words in (("--who", who), ("--why", why)):
        if not words.strip():
            raise UsageError(f"{flag} is empty", remedy="the store's history records who decided, and why")


def _require_release(manifest: Manifest, version: str, where: Path) -> None:
    if manifest.version != version:
        raise VerificationFailed(
            f"the bundle was version {version} when it was checked, and is {manifest.version} now",
            where=str(where),
            remedy="get the bundle again, and see who changes it",
        )
    _require_pass(manifest, where)


def _require_pass(manifest: Manifest, where: Path) -> None:
    if not manifest.passed:
        raise VerificationFailed(
            f"version {manifest.version} may not be shipped: {'; '.join(manifest.reasons)}",
            where=str(where),
            remedy="convert or verify again, and pack a new bundle",
        )
