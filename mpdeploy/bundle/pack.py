"""Pack a release: copy what belongs in it, lay out what serves it, and write the manifest last."""

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from mpdeploy import __version__, records
from mpdeploy.bundle.check import digest_text, is_bundle
from mpdeploy.bundle.contents import Contents, gather
from mpdeploy.bundle.judgement import reasons_against, source_of
from mpdeploy.bundle.manifest import (
    DIGEST,
    FOLDERS,
    MANIFEST,
    SIGNATURE,
    BundledEngine,
    BundledModel,
    BundleFile,
    Manifest,
    Role,
    TrainingFacts,
    is_inside,
    is_name,
)
from mpdeploy.bundle.signature import sign
from mpdeploy.bundle.triton import Serving, lay_out
from mpdeploy.engine.record import sidecar_of
from mpdeploy.errors import UsageError
from mpdeploy.files import atomic_folder, readable_file, sha256_of
from mpdeploy.runtime.apart import require_apart
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.npz import save_npz

_VERSION_DIGITS = 12


@dataclass(frozen=True)
class Packing:
    """What goes into a release besides the models.

    ``version`` empty means: 12 digits of a hash over all files, so that equal contents are equal versions.
    ``sample`` gives one feed to try the release with.  ``serving`` lays out a Triton model repository.  ``key`` is a
    file with an ed25519 private key that signs the manifest.
    """

    name: str
    version: str = ""
    sample: Feeds | None = None
    licences: tuple[Path, ...] = ()
    training: TrainingFacts | None = None
    serving: Serving | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        for what, word in (("name", self.name), ("version", self.version or "1")):
            if not is_name(word):
                raise UsageError(
                    f"{word!r} cannot be the {what} of a release",
                    where=f"--{what}",
                    remedy="use at most 100 letters, digits, dots, - and _, a letter or digit first",
                )


@dataclass
class _Files:
    """The files of a bundle under construction: each with its role, by its path inside."""

    folder: Path
    roles: dict[str, Role] = field(default_factory=dict)

    def copy(self, path: Path, role: Role) -> str:
        """Copy a file to its place; return its path inside."""
        inside = f"{FOLDERS[role]}/{path.name}"
        if not is_inside(inside):
            raise UsageError("a bundle cannot hold a file of this name", where=str(path), remedy="rename it")
        # Names that differ in case alone are one file on some file systems.
        there = next((known for known in self.roles if known.casefold() == inside.casefold()), None)
        if there is not None:
            if there == inside and sha256_of(self.folder / inside) == sha256_of(path):
                return inside
            raise UsageError(f"two different files would be {inside}", where=str(path), remedy="rename one")
        target = self.folder / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        self.roles[inside] = role
        return inside

    def listing(self) -> tuple[BundleFile, ...]:
        """Return every file with its size and hash, sorted by path."""
        return tuple(
            BundleFile(inside, role, (self.folder / inside).stat().st_size, sha256_of(self.folder / inside))
            for inside, role in sorted(self.roles.items())
        )


def pack(source: Path, output: Path, packing: Packing) -> Manifest:
    """Write the release that the folder ``source`` amounts to into the folder ``output``; return its manifest.

    ``output`` appears whole or not at all, and an older bundle of that name is replaced, no other folder.  A release
    that may not be shipped is packed all the same, and says so.  Raises ``UsageError`` for missing or damaged parts,
    ``DependencyError`` if signing or serving needs a package.
    """
    if output.resolve() == source.resolve() or output.resolve() in source.resolve().parents:
        raise UsageError("the bundle would replace the folder it is made from", where=str(output))
    after = None if packing.serving is None else packing.serving.after
    require_apart((), folders=(output,), others=(packing.sample, packing.key, after, *packing.licences))
    if output.is_dir() and any(output.iterdir()) and not is_bundle(output):
        raise UsageError(
            "the folder would be replaced, and is not a bundle", where=str(output), remedy="name a new one"
        )
    contents = gather(source)
    with atomic_folder(output) as folder:
        files = _Files(folder)
        models, engines = tuple(_add_models(files, contents)), tuple(_add_engines(files, contents))
        for path in contents.reports:
            files.copy(path, Role.REPORT)
        for path in packing.licences:
            files.copy(readable_file(path, "licence"), Role.LICENCE)
        notes = [] if packing.licences else ["no licence was given: whether the weights may be passed on is not said"]
        if packing.sample is not None:
            _add_sample(files, packing.sample)
        if packing.serving is not None:
            laid_out, left_out = lay_out(folder, contents, packing.serving, packing.sample)
            files.roles |= dict.fromkeys(laid_out, Role.SERVING)
            notes += left_out
        listing = files.listing()
        reasons = reasons_against(contents)
        manifest = Manifest(
            name=packing.name,
            version=packing.version or _digest_of(listing),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            tool=f"mpdeploy {__version__}",
            files=listing,
            training=packing.training,
            models=models,
            engines=engines,
            passed=not reasons,
            reasons=reasons,
            notes=tuple(notes),
        )
        content = records.to_json(manifest)
        (folder / MANIFEST).write_bytes(content)
        signed = None if packing.key is None else sign(content, packing.key).encode()
        if signed is not None:
            (folder / SIGNATURE).write_bytes(signed)
        (folder / DIGEST).write_bytes(digest_text(content, signed))
    return manifest


def _add_models(files: _Files, contents: Contents) -> Iterator[BundledModel]:
    for model in contents.models:
        inside = files.copy(model.path, Role.MODEL)
        for path in model.weights:
            files.copy(path, Role.WEIGHTS)
        plan = "" if model.plan is None else files.copy(model.plan, Role.PLAN)
        yield BundledModel(inside, model.facts.coarsest.value, plan, contents.verdict_on(model.facts))


def _add_engines(files: _Files, contents: Contents) -> Iterator[BundledEngine]:
    for engine in contents.engines:
        inside = files.copy(engine.path, Role.ENGINE)
        files.copy(sidecar_of(engine.path), Role.SIDECAR)
        source = source_of(engine, contents)
        record = engine.record
        yield BundledEngine(
            inside,
            "" if source is None else f"{FOLDERS[Role.MODEL]}/{source.path.name}",
            record.backend,
            record.backend_version,
            record.capabilities,
        )


def _add_sample(files: _Files, feeds: Feeds) -> None:
    inside = "sample/sample.npz"
    target = files.folder / inside
    target.parent.mkdir()
    save_npz(target, next(iter(feeds)))
    files.roles[inside] = Role.SAMPLE


def _digest_of(listing: Iterable[BundleFile]) -> str:
    total = hashlib.sha256()
    for file in listing:
        total.update(f"{file.path} {file.sha256}\n".encode())
    return total.hexdigest()[:_VERSION_DIGITS]
