"""Ed25519 signatures over the manifest, which holds the hash of everything else."""

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpdeploy.errors import DependencyError, UsageError, VerificationFailed
from mpdeploy.files import readable_file

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_MAKE_ONE = "make one with 'openssl genpkey -algorithm ed25519 -out key.pem'"


def sign(content: bytes, key: Path) -> str:
    """Return the signature of ``content`` as one line of base64.

    ``key`` is a file with an unencrypted ed25519 private key in PEM.  Raises ``UsageError`` if it is not,
    ``DependencyError`` if the package `cryptography` is missing.
    """
    return base64.b64encode(_private_key(key).sign(content)).decode() + "\n"


def check(content: bytes, signature: str, key: Path, where: str) -> None:
    """Raise ``VerificationFailed`` unless ``signature`` is that of ``content`` by the owner of ``key``.

    ``key`` is a file with an ed25519 public key in PEM; faults as in ``sign``.
    """
    _cryptography()
    from cryptography.exceptions import InvalidSignature

    public = _public_key(key)
    try:
        public.verify(base64.b64decode(signature.removesuffix("\n"), validate=True), content)
    except (InvalidSignature, ValueError) as error:  # binascii.Error is a ValueError, and so is what is not ASCII
        raise VerificationFailed(
            "the signature is not that of this manifest by this key",
            where=where,
            remedy="get the bundle again from its maker, or check the key",
        ) from error


def _private_key(path: Path) -> "Ed25519PrivateKey":
    serialization = _cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    content = readable_file(path, "private key").read_bytes()
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise UsageError("not an unencrypted private key in PEM", where=str(path), remedy=_MAKE_ONE) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError("the private key is not ed25519", where=str(path), remedy=_MAKE_ONE)
    return key


def _public_key(path: Path) -> "Ed25519PublicKey":
    serialization = _cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    content = readable_file(path, "public key").read_bytes()
    try:
        key = serialization.load_pem_public_key(content)
    except ValueError as error:
        raise UsageError(
            "not a public key in PEM", where=str(path), remedy="take it from 'openssl pkey -in key.pem -pubout'"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError("the public key is not ed25519", where=str(path))
    return key


def _cryptography() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError as error:
        raise DependencyError(
            "signatures need the package cryptography", where=str(error), remedy="pip install 'mpdeploy[sign]'"
        ) from error
    return serialization
