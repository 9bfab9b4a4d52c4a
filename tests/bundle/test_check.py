"""Any changed byte is found."""

import json

import pytest

from mpdeploy.bundle.check import check_bundle
from mpdeploy.bundle.pack import Packing, pack
from mpdeploy.errors import UsageError, VerificationFailed
from mpdeploy.files import sha256_of


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


def test_a_manifest_cannot_point_outside(bundle):
    manifest, digest = bundle / "manifest.json", bundle / "manifest.sha256"
    document = json.loads(manifest.read_text())
    document["files"][0]["path"] = "../../etc/passwd"
    manifest.write_text(json.dumps(document))
    digest.write_text(f"{sha256_of(manifest)}  manifest.json\n")
    with pytest.raises(VerificationFailed, match="points outside"):
        check_bundle(bundle)


def test_no_bundle(tmp_path):
    with pytest.raises(UsageError, match="not a bundle"):
        check_bundle(tmp_path)


class TestSigned:
    @pytest.fixture
    def signed(self, export, tmp_path, keys):
        pack(export, tmp_path / "signed", Packing("net", version="1", key=keys[0]))
        return tmp_path / "signed"

    def test_the_right_key_opens(self, signed, keys):
        assert check_bundle(signed, keys[1]).version == "1"
        assert check_bundle(signed).version == "1"  # without a key the hashes are checked all the same

    def test_a_forged_manifest_is_found(self, signed, keys):
        manifest = signed / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"passed": true', '"passed": false'))
        (signed / "manifest.sha256").write_text(f"{sha256_of(manifest)}  manifest.json\n")
        assert not check_bundle(signed).passed  # hashes alone cannot tell
        with pytest.raises(VerificationFailed, match="signature is not that of this manifest"):
            check_bundle(signed, keys[1])

    @pytest.mark.parametrize("text", ["", "not base64!", "AAAA"])
    def test_a_damaged_signature(self, signed, keys, text):
        (signed / "manifest.sig").write_text(text)
        with pytest.raises(VerificationFailed, match="signature"):
            check_bundle(signed, keys[1])

    def test_unsigned_where_a_signature_is_asked_for(self, bundle, keys):
        with pytest.raises(VerificationFailed, match="not signed"):
            check_bundle(bundle, keys[1])

    def test_keys_that_are_none(self, export, tmp_path, signed, keys):
        private, public = keys
        with pytest.raises(UsageError, match="openssl genpkey"):
            pack(export, tmp_path / "out", Packing("net", key=public))
        with pytest.raises(UsageError, match="not a public key"):
            check_bundle(signed, private)
