"""What is written is as valid as what was read."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from mpdeploy.conversion.api import convert
from mpdeploy.errors import InternalError
from mpdeploy.graph import io
from mpdeploy.graph.opset import raised
from mpdeploy.graph.written import check_written

MISTAKEN = """<ir_version: 5, opset_import: ["" : 10]>
g (float[4,8] x, bool[4] keep) => (float[K] y) {
    m = MatMul(x, w)
    y = Compress<axis = 0>(m, keep)
}"""


def saved(text, path, **weights):
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, path)
    return path


def rank_of(value):
    return len(value.type.tensor_type.shape.dim)


def test_a_wrong_rank_that_only_a_newer_opset_sees_is_corrected(tmp_path, run):
    """A26: Compress has no shape inference below opset 11, so nobody saw that its output has two dimensions."""
    source = saved(MISTAKEN, tmp_path / "source.onnx", w=np.ones((8, 4), np.float32))
    onnx.checker.check_model(onnx.load(source), full_check=True)
    higher = raised(io.load(source), 13)
    assert io.source_of(higher).mistaken == {"y"}
    for precision in ("bf16", "fp16"):
        result = convert(source, tmp_path / f"{precision}.onnx", precision=precision)
        written = onnx.load(result.model)
        onnx.checker.check_model(written, full_check=True)
        assert rank_of(written.graph.output[0]) == (2 if precision == "bf16" else 1)
        assert any("'y'" in note for note in result.notes) == (precision == "bf16")


def test_an_invalid_result_is_never_written(tmp_path):
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[4,8] x) => (float[4,8] y) { y = Relu(x) }'
    model = io.load(saved(text, tmp_path / "source.onnx"))
    check_written(model)
    model.graph[0].outputs[0].dtype = type(model.graph.outputs[0].dtype).FLOAT16
    with pytest.raises(InternalError, match="would be invalid"):
        check_written(model)


def test_a_result_may_have_the_faults_of_its_source(tmp_path):
    """Runtimes run many models whose declared shapes contradict each other; they are read, so they are written."""
    text = MISTAKEN.replace("Compress<axis = 0>(m, keep)", "Relu(m)")
    source = saved(text, tmp_path / "source.onnx", w=np.ones((8, 4), np.float32))
    assert convert(source, tmp_path / "low.onnx", precision="fp16").low_operators
