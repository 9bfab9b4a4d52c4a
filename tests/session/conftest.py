"""One tiny model in every form that can be opened."""

import numpy as np
import onnx.parser
import pytest

PRODUCT = """<ir_version: 10, opset_import: ["" : 22]>
g (float[N,8] x) => (float[N,N] y) {{
    low = Cast<to={code}>(x)  turned = Transpose<perm=[1,0]>(low)
    product = MatMul(low, turned)  y = Cast<to=1>(product)
}}"""
CODES = {"fp32": 1, "fp16": 10, "bf16": 16}


@pytest.fixture(scope="session")
def product(tmp_path_factory):
    """Return a function that gives the file of x @ x.T in a format, FP32 in and out."""
    folder = tmp_path_factory.mktemp("products")

    def write(kind="fp32"):
        path = folder / f"{kind}.onnx"
        path.write_bytes(onnx.parser.parse_model(PRODUCT.format(code=CODES[kind])).SerializeToString())
        return path

    return write


@pytest.fixture
def text_model(tmp_path):
    """Return a function that writes a model given as text."""

    def write(text, name="model.onnx"):
        path = tmp_path / name
        path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
        return path

    return write


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
