"""Faults that users of TensorRT report again and again, by the numbers of the collected cases (section T).

T1, T6, T10, T11 stand in test_build and test_refusals, T2, T4 in cli/test_build, T7, T8 in test_loading, T9 in
test_spread, T14, T16 in test_binding, T20 in test_refusals.
"""

import numpy as np
import pytest

from mpdeploy.engine.backends import find_backend
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.options import BuildOptions
from mpdeploy.errors import UsageError
from mpdeploy.graph import io
from mpdeploy.runtime.emulator import EmulatorRunner

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")

PINNED = """<ir_version: 10, opset_import: ["" : 17]>
t3 (float16[4,8] x) => (float16[4,8] y) <float[8] scale = {1,1,1,1,1,1,1,1}> {
    wide = Cast<to=1>(x)  normed = LayerNormalization(wide, scale)  low = Cast<to=10>(normed)  y = Relu(low)
}"""
SLICE = """<ir_version: 10, opset_import: ["" : 17]>
t12 (float16[4,8] x) => (float16[4,6] y)
    <int64[1] starts = {2}, int64[1] ends = {9223372036854775807}, int64[1] axes = {1}> {
    y = Slice(x, starts, ends, axes)
}"""
BRANCHES = """<ir_version: 10, opset_import: ["" : 17]>
t17 (float[4,4] x, bool c) => (float[a,b] y) <int64[2] lo = {0,0}, int64[2] hi = {2,2}> {
    y = If<then_branch = g1 () => (float[4,4] t) { t = Relu(x) },
           else_branch = g2 () => (float[2,2] e) { e = Slice(x, lo, hi) }>(c)
}"""


def parsed(path):
    with find_backend("rtx").parse(path) as model:
        return model.network


def test_t3_a_pinned_layer_norm_stays_fp32_in_the_network(text_model):
    network = parsed(text_model(PINNED))
    assert (network.types["normed"], network.types["y"]) == ("fp32", "fp16")


def test_t5_strong_typing_is_always_on(layer, tmp_path):
    record = build_engine(layer(), tmp_path / "model.engine")
    assert record.census.compute == {"fp16": 1}  # nobody had to ask for it


def test_t12_an_int64_end_beyond_int32_means_the_end(text_model, tmp_path):
    model = text_model(SLICE)
    record = build_engine(model, tmp_path / "model.engine")
    assert record.outputs[0].shape == (4, 6)
    x = np.arange(32, dtype=np.float16).reshape(4, 8)
    np.testing.assert_array_equal(EmulatorRunner(io.load(model), "m").run({"x": x})["y"], x[:, 2:])


def test_t13_tf32_is_off_unless_asked_for_and_the_record_says_so(layer, tmp_path):
    assert not build_engine(layer(), tmp_path / "model.engine").options.tf32
    assert build_engine(layer(), tmp_path / "model.engine", options=BuildOptions(tf32=True)).options.tf32


def test_t17_branches_of_different_shape_build_and_leave_the_output_open(text_model, tmp_path):
    """Older TensorRTs refuse this; where one does not, the record must not promise a shape."""
    record = build_engine(text_model(BRANCHES), tmp_path / "model.engine")
    assert record.outputs[0].shape == (None, None)


def test_t18_rtx_has_no_timing_cache(layer, tmp_path):
    options = BuildOptions(timing_cache=str(tmp_path / "timings"))
    with pytest.raises(UsageError, match=r"no timing cache.*--cache DIR"):
        build_engine(layer(), tmp_path / "model.engine", options=options)
    assert not (tmp_path / "model.engine").exists()
