"""Is a bundle what it was when it was packed?  Any changed, missing or added byte is found."""

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mpdeploy import records
from mpdeploy.bundle import signature
from mpdeploy.bundle.manifest import DIGEST, MANIFEST, SIGNATURE, Manifest
from mpdeploy.errors import UsageError, VerificationFailed
from mpdeploy.files import readable_file, sha256_of

_SHOWN = 3
_OWN = {MANIFEST, DIGEST, SIGNATURE}


def check_bundle(folder: Path, key: Path | None = None) -> Manifest:
    """Return the manifest of an untouched bundle; with ``key`` (an ed25519 public key) its signature must hold, too.

    Raises ``UsageError`` if the folder is no bundle, ``VerificationFailed`` that names what changed.  Without a
    key a forger who rewrites manifest and digest stays unseen: hashes find damage, signatures find forgery.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise UsageError(
            "not a bundle: it has no manifest", where=str(folder), remedy="make one with 'mpdeploy bundle'"
        )
    content = path.read_bytes()
    digest = readable_file(folder / DIGEST, "digest of the manifest").read_text(errors="replace")
    if digest != f"{hashlib.sha256(content).hexdigest()}  {MANIFEST}\n":
        raise VerificationFailed(
            "the manifest or its digest changed since it was packed", where=str(path), remedy="get the bundle anew"
        )
    manifest = records.from_json(Manifest, content, str(path))
    faults = [*_faults(folder, manifest)]
    if faults:
        more = f" and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise VerificationFailed(
            f"the bundle changed since it was packed: {'; '.join(faults[:_SHOWN])}{more}",
            where=str(folder),
            remedy="get the bundle anew",
        )
    if key is not None:
        if not (folder / SIGNATURE).is_file():
            raise VerificationFailed("the bundle is not signed", where=str(folder), remedy="pack it with --sign KEY")
        signature.check(content, (folder / SIGNATURE).read_text(errors="replace"), key, str(folder / SIGNATURE))
    return manifest


def _faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    listed = {file.path for file in manifest.files}
    for file in manifest.files:
        inside = PurePosixPath(file.path)
        if inside.is_absolute() or ".." in inside.parts:
            yield f"{file.path} points outside"
            continue
        path = folder / inside
        if path.is_symlink():
            yield f"{file.path} is a link"
        elif not path.is_file():
            yield f"{file.path} is missing"
        elif path.stat().st_size != file.bytes or sha256_of(path) != file.sha256:
            yield f"{file.path} differs"
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (path.is_symlink() or not path.is_dir()) and name not in listed and name not in _OWN:
            yield f"{name} was added"
