"""Data that fit and yet cannot be right are told, by whichever command reads them."""

import numpy as np
import onnx
import pytest

import mpdeploy
from mpdeploy.runtime.doubts import doubts_of
from mpdeploy.runtime.runner import TensorSpec

IMAGE = TensorSpec("image", "float32", ("n", 1, 4, 4))
PIXELS = np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4) * 17
MODEL = """<ir_version: 8, opset_import: ["" : 17]> g (float[n,1,4,4] image) => (float[n,1,4,4] y)
   <float[4,4] w = {0.1, 0.2, 0.3, 0.4, 0.1, 0.2, 0.3, 0.4, 0.1, 0.2, 0.3, 0.4, 0.1, 0.2, 0.3, 0.4}>
   { h = MatMul(image, w)  y = Relu(h) }"""


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (PIXELS, "raw pixels"),
        (PIXELS.astype(np.float32), "raw pixels"),
        (PIXELS.astype(np.float32) / 255, ""),
        (PIXELS.astype(np.float32) / 17, ""),  # grey levels of few steps may be what the model learned from
        (PIXELS.astype(np.float32) - 128, ""),
        (np.full((1, 1, 4, 4), np.nan, np.float32), "holds NaN"),
        (np.full((1, 1, 4, 4), -np.inf, np.float32), ""),  # a mask may be infinite
        (np.zeros((0, 1, 4, 4), np.float32), ""),
    ],
)
def test_what_cannot_be_right(array, said):
    found = doubts_of({"image": array, "other": np.full(3, np.nan)}, [IMAGE])
    assert len(found) == bool(said)
    assert all(said in remark for remark in found)


def test_whole_numbers_into_an_input_of_whole_numbers_are_none_of_our_business():
    assert doubts_of({"ids": PIXELS}, [TensorSpec("ids", "uint8", ("n", 1, 4, 4))]) == []


def test_every_road_tells(tmp_path):
    source = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), source)
    feeds = [{"image": PIXELS.astype(np.float32)}, {"image": PIXELS.astype(np.float32)}]
    converted = mpdeploy.convert(source, tmp_path / "low.onnx", precision="fp16", data=feeds)
    verified = mpdeploy.verify(source, converted.model, feeds, noise=False)
    exported = mpdeploy.export(source, tmp_path / "out", data=feeds)
    for notes in (converted.notes, verified.notes, exported.notes):
        assert sum("raw pixels" in note for note in notes) == 1
