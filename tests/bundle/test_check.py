"""Any changed byte is found."""

import json
import os
import subprocess

import pytest

from mpdeploy.bundle.check import check_bundle, digest_text
from mpdeploy.bundle.pack import Packing, pack
from mpdeploy.errors import UsageError, VerificationFailed


def test_an_untouched_bundle_passes(bundle):
    assert check_bundle(bundle).version == "1"


def test_every_file_is_watched_at_both_ends(bundle):
    files = [path for path in bundle.rglob("*") if path.is_file()]
    assert len(files) == 6
    for path in files:
        whole = path.read_bytes()
        for place in (0, len(whole) // 2, -1):
            changed = bytearray(whole)
            changed[place] ^= 1
            path.write_bytes(changed)
            with pytest.raises(VerificationFailed):
                check_bundle(bundle)
        path.write_bytes(whole)
    check_bundle(bundle)


def test_what_is_missing_added_or_a_link_is_named(bundle):
    (bundle / "models" / "extra.bin").write_bytes(b"")
    with pytest.raises(VerificationFailed, match=r"models/extra\.bin was added"):
        check_bundle(bundle)
    (bundle / "models" / "extra.bin").unlink()
    model = bundle / "models" / "model.onnx"
    elsewhere = bundle.parent / "elsewhere.onnx"
    model.rename(elsewhere)
    with pytest.raises(VerificationFailed, match=r"models/model\.onnx is missing"):
        check_bundle(bundle)
    model.symlink_to(elsewhere)
    with pytest.raises(VerificationFailed, match=r"models/model\.onnx is a link"):
        check_bundle(bundle)


def forged(bundle, change):
    """Change the manifest of a bundle and make its digest fit again, as somebody would who wants to be believed."""
    manifest, signature = bundle / "manifest.json", bundle / "manifest.sig"
    document = json.loads(manifest.read_text())
    change(document)
    manifest.write_text(json.dumps(document))
    signed = signature.read_bytes() if signature.is_file() else None
    (bundle / "manifest.sha256").write_bytes(digest_text(manifest.read_bytes(), signed))


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "/etc/passwd", "..\\x", "C:/x", "models/../../x", "a//b", "./x", "x\0y", ""]
)
def test_a_manifest_cannot_point_outside(bundle, path):
    forged(bundle, lambda document: document["files"][0].update(path=path))
    with pytest.raises(VerificationFailed, match="points outside"):
        check_bundle(bundle)


@pytest.mark.parametrize("word", ["../../x", "", ".", "..", "a/b", "a b", "x\0", "x" * 300, "x."])
@pytest.mark.parametrize("what", ["name", "version"])
def test_a_name_or_version_that_is_none(bundle, what, word):
    forged(bundle, lambda document: document.update({what: word}))
    with pytest.raises(VerificationFailed, match=f"cannot be the {what} of a release"):
        check_bundle(bundle)


def test_a_file_that_is_listed_twice(bundle):
    forged(bundle, lambda document: document["files"].append(document["files"][0] | {"path": "MODELS/model.onnx"}))
    with pytest.raises(VerificationFailed, match=r"MODELS/model\.onnx stands in the manifest twice"):
        check_bundle(bundle)


def test_links_in_the_place_of_folders_and_of_the_manifest(bundle):
    for name in ("models", "manifest.json", "manifest.sha256"):
        moved = (bundle / name).rename(bundle.parent / "moved")
        (bundle / name).symlink_to(moved, target_is_directory=moved.is_dir())
        with pytest.raises(VerificationFailed, match=name):
            check_bundle(bundle)
        (bundle / name).unlink()
        moved.rename(bundle / name)
    check_bundle(bundle)


def test_what_is_no_regular_file(bundle):
    os.mkfifo(bundle / "models" / "pipe")
    with pytest.raises(VerificationFailed, match="models/pipe was added"):
        check_bundle(bundle)
    (bundle / "models" / "pipe").unlink()
    (bundle / "models" / "model.onnx").unlink()
    os.mkfifo(bundle / "models" / "model.onnx")
    with pytest.raises(VerificationFailed, match=r"models/model\.onnx is missing"):
        check_bundle(bundle)


def test_the_digest_is_one_that_sha256sum_reads(bundle):
    done = subprocess.run(["sha256sum", "-c", "manifest.sha256"], cwd=bundle, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"manifest.json: OK\n")


def test_no_bundle(tmp_path):
    with pytest.raises(UsageError, match="not a bundle"):
        check_bundle(tmp_path)
    (tmp_path / "manifest.json").write_text('{"schema": "mpdeploy.export-manifest/1"}')  # an export has one, too
    with pytest.raises(UsageError, match="not a bundle"):
        check_bundle(tmp_path)


def test_a_bundle_without_its_digest_is_a_changed_one(bundle):
    (bundle / "manifest.sha256").unlink()
    with pytest.raises(VerificationFailed, match="digest"):
        check_bundle(bundle)


class TestSigned:
    @pytest.fixture
    def signed(self, export, tmp_path, keys):
        pack(export, tmp_path / "signed", Packing("net", version="1", key=keys[0]))
        return tmp_path / "signed"

    def test_the_right_key_opens(self, signed, keys):
        assert check_bundle(signed, keys[1]).version == "1"
        assert check_bundle(signed).version == "1"  # without a key the hashes are checked all the same

    def test_a_forged_manifest_is_found(self, signed, keys):
        forged(signed, lambda document: document.update(passed=False))
        assert not check_bundle(signed).passed  # hashes alone cannot tell
        with pytest.raises(VerificationFailed, match="signature is not that of this manifest"):
            check_bundle(signed, keys[1])

    @pytest.mark.parametrize("text", ["", "not base64!", "AAAA"])
    def test_a_damaged_signature(self, signed, keys, text):
        (signed / "manifest.sig").write_text(text)
        with pytest.raises(VerificationFailed, match="signature"):
            check_bundle(signed, keys[1])

    def test_any_changed_byte_of_the_signature_is_found_without_a_key_too(self, signed, keys):
        path = signed / "manifest.sig"
        whole = path.read_bytes()
        for content in (
            whole + b"\n",
            whole[:-1],
            whole[:-2] + b"A\n",
            b"\n" + whole,
            bytes([whole[0] ^ 1]) + whole[1:],
        ):
            path.write_bytes(content)
            for key in (None, keys[1]):
                with pytest.raises(VerificationFailed, match="signature"):
                    check_bundle(signed, key)
        path.unlink()
        with pytest.raises(VerificationFailed):
            check_bundle(signed)

    def test_the_key_of_another(self, signed, tmp_path):
        from cryptography.hazmat.primitives import serialization as s
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        other = tmp_path / "other.pub"
        public = Ed25519PrivateKey.generate().public_key()
        other.write_bytes(public.public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))
        with pytest.raises(VerificationFailed, match="not that of this manifest by this key"):
            check_bundle(signed, other)

    def test_unsigned_where_a_signature_is_asked_for(self, bundle, keys):
        with pytest.raises(VerificationFailed, match="not signed"):
            check_bundle(bundle, keys[1])

    def test_keys_that_are_none(self, export, tmp_path, signed, keys):
        private, public = keys
        with pytest.raises(UsageError, match="openssl genpkey"):
            pack(export, tmp_path / "out", Packing("net", key=public))
        with pytest.raises(UsageError, match="not a public key"):
            check_bundle(signed, private)
