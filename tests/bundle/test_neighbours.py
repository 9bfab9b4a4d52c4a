"""Requests are joined only where a sample's result does not depend on its neighbours (D9)."""

import numpy as np
import onnx.parser
import pytest

from mpdeploy.bundle.contents import gather
from mpdeploy.bundle.neighbours import reason_against_joining
from mpdeploy.runtime.feeds import feeds_of

BODIES = {
    "each row by itself": ("N", "y = Relu(x)", ""),
    "a running sum along the first axis": ("N", "a = Constant<value = int64 {0}>()  y = CumSum(x, a)", "its neighbour"),
    "a mean over all rows": (
        "N", "m = ReduceMean<axes = [0], keepdims = 1>(x)  y = Sub(x, m)", "its neighbour"
    ),
    "a softmax over the rows": ("N", "y = Softmax<axis = 0>(x)", "its neighbour"),
    "time comes first": ("time", "y = Relu(x)", "its first axis is called time"),
    "a sequence comes first": ("seq_len", "y = Relu(x)", "its first axis is called seq_len"),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("with_data", [True, False])
def test_two_samples_alone_and_joined(tmp_path, name, with_data):
    axis, body, says = BODIES[name]
    text = f'<ir_version: 8, opset_import: ["" : 17]> net (float[{axis},4] x) => (float[{axis},4] y) {{ {body} }}'
    (tmp_path / "net.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    model = gather(tmp_path).models[0]
    rows = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    found = reason_against_joining(model, feeds_of([{"x": rows}]) if with_data else None)
    assert says in found
    assert bool(found) is bool(says)


def test_equal_samples_prove_nothing(tmp_path):
    text = '<ir_version: 8, opset_import: ["" : 17]> net (float[N,4] x) => (float[N,4] y) { y = Softmax<axis = 0>(x) }'
    (tmp_path / "net.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    same = feeds_of([{"x": np.ones((3, 4), np.float32)}])
    assert "no two samples" in reason_against_joining(gather(tmp_path).models[0], same)
