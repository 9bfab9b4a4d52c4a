"""The folder of a small export, and what can be packed from it."""

import shutil

import numpy as np
import onnx.parser
import pytest

from mpdeploy import records
from mpdeploy.bundle.pack import Packing, pack
from mpdeploy.conversion.api import convert
from mpdeploy.runtime.feeds import open_feeds
from mpdeploy.verification.api import verify

WEIGHTS = ",".join(f"{0.01 * i:.2f}" for i in range(64))
NET = f"""<ir_version: 10, opset_import: ["" : 17]>
net (float[N,8] x) => (float[N,8] y) <float[8,8] w = {{{WEIGHTS}}}> {{ m = MatMul(x, w)  y = Relu(m) }}"""


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """What an export leaves: the FP32 model, an FP16 one with its plan, a passing drift report, held-out data."""
    folder = tmp_path_factory.mktemp("export") / "net"
    (folder / "heldout").mkdir(parents=True)
    x = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    np.savez(folder / "heldout" / "0.npz", x=x)
    reference, low = folder / "model.onnx", folder / "model.fp16.onnx"
    reference.write_bytes(onnx.parser.parse_model(NET).SerializeToString())
    convert(reference, low, precision="fp16")
    drift = verify(reference, low, open_feeds(str(folder / "heldout")))
    assert drift.verdict.passed
    records.save(drift, folder / "drift.fp16.json")
    return folder


@pytest.fixture
def export(made, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(made, tmp_path / "net")


@pytest.fixture
def bundle(export, tmp_path):
    """A packed release, version 1."""
    target = tmp_path / "bundle"
    pack(export, target, Packing("net", version="1"))
    return target


@pytest.fixture
def keys(tmp_path):
    """A private and a public ed25519 key, as files."""
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    private.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo))
    return private, public
