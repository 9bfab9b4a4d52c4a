"""Models whose drift has a known cause, and data for them."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

WEIGHT = np.random.default_rng(1).normal(size=(16, 16)).astype(np.float32) / 4


@pytest.fixture
def model(tmp_path):
    """Return a function that writes a model given as text, every missing matrix w* filled in, and returns its path."""

    def write(text, name="net.onnx"):
        made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
        read = {i for node in made.graph.node for i in node.input if i.startswith("w")}
        made.graph.initializer.extend(numpy_helper.from_array(WEIGHT, name) for name in sorted(read))
        path = tmp_path / name
        onnx.save(made, path)
        return path

    return write


@pytest.fixture
def data(tmp_path):
    """The path of a folder with three feeds of x."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        x = np.random.default_rng(number).normal(size=(4, 16)).astype(np.float32)
        np.savez(folder / f"{number}.npz", x=x)
    return str(folder)
