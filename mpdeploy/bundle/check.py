"""Is a bundle what it was when it was packed?  Any changed, missing or added byte is found."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from mpdeploy import records
from mpdeploy.bundle import signature
from mpdeploy.bundle.manifest import DIGEST, MANIFEST, SIGNATURE, Manifest, is_inside, is_name
from mpdeploy.errors import UsageError, VerificationFailed
from mpdeploy.files import sha256_of

_SHOWN = 3
_OWN = frozenset({MANIFEST, DIGEST, SIGNATURE})


def check_bundle(folder: Path, key: Path | None = None) -> Manifest:
    """Return the manifest of an untouched bundle; with ``key`` (an ed25519 public key) its signature must hold, too.

    Raises ``UsageError`` if the folder is not a bundle, ``VerificationFailed`` that names what changed.  Without a
    key a forger who rewrites manifest and digest stays unseen: hashes find damage, signatures find forgery.
    """
    path = folder / MANIFEST
    if not is_bundle(folder):
        raise UsageError(
            "not a bundle: it has no manifest", where=str(folder), remedy="make one with 'mpdeploy bundle'"
        )
    for name in _OWN:
        if (folder / name).is_symlink():
            raise _changed(f"{name} is a link", folder)
    content = path.read_bytes()
    signed = _read(folder / SIGNATURE)
    if _read(folder / DIGEST) != digest_text(content, signed):
        raise _changed("the manifest, its signature or their digest is not the one that was packed", folder)
    if key is not None:
        if signed is None:
            raise VerificationFailed("the bundle is not signed", where=str(folder), remedy="pack it with --sign KEY")
        signature.check(content, signed.decode(errors="replace"), key, str(folder / SIGNATURE))
    manifest = records.from_json(Manifest, content, str(path))
    faults = [*_faults(folder, manifest)]
    if faults:
        more = f" and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise _changed(f"{'; '.join(faults[:_SHOWN])}{more}", folder)
    return manifest


def is_bundle(folder: Path) -> bool:
    """Tell whether a folder is a bundle, damaged or not."""
    path = folder / MANIFEST
    # Other folders have a manifest of that name, too; a bundle's at least says what it is.
    return path.is_file() and ((folder / DIGEST).exists() or Manifest.schema.encode() in path.read_bytes())


def digest_text(manifest: bytes, signed: bytes | None) -> bytes:
    """Return what stands in the digest file, as `sha256sum -c` reads it; ``signed`` is the signature file, if any."""
    lines = [f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n"]
    if signed is not None:
        lines.append(f"{hashlib.sha256(signed).hexdigest()}  {SIGNATURE}\n")
    return "".join(lines).encode()


def _faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    for what, word in (("name", manifest.name), ("version", manifest.version)):
        if not is_name(word):
            yield f"{word!r} cannot be the {what} of a release"
    listed: set[str] = set()
    for file in manifest.files:
        if not is_inside(file.path):
            yield f"{file.path!r} points outside"
            continue
        if file.path.casefold() in listed:
            yield f"{file.path} stands in the manifest twice"
        listed.add(file.path.casefold())
        path = folder / file.path
        if path.is_symlink():
            yield f"{file.path} is a link"
        elif not path.is_file():
            yield f"{file.path} is missing"
        elif path.stat().st_size != file.bytes or sha256_of(path) != file.sha256:
            yield f"{file.path} differs"
    expected = {file.path for file in manifest.files} | _OWN
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (path.is_symlink() or not path.is_dir()) and name not in expected:
            yield f"{name} was added"


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _changed(what: str, folder: Path) -> VerificationFailed:
    return VerificationFailed(
        f"the bundle changed since it was packed: {what}", where=str(folder), remedy="get the bundle again"
    )
