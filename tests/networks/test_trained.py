"""Models with trained weights, as their packages ship them."""

import numpy as np
import pytest

from mpdeploy.conversion.api import convert
from mpdeploy.graph import io
from mpdeploy.graph.scope import nodes_under, subgraphs_of
from mpdeploy.graph.traits import Kind, kind_of
from mpdeploy.graph.types import element_type
from tests.networks.test_networks import drift
from tests.networks.trained import TRAINED, feed_of, path_of

# All of it low drifts by 0.103 here, over the default budget of 0.1: with data, some goes back to FP32.
REPAIRED = {("ocr-detect", "bf16")}


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_trained_model(tmp_path, name, precision):
    source, feed = path_of(name), tmp_path / "feed.npz"
    np.savez(feed, **feed_of(name))
    for data in (None, str(feed)):
        made = tmp_path / "low.onnx"
        result = convert(source, made, precision=precision, data=data)
        assert result.low_flops >= (0.75 if data is not None and (name, precision) in REPAIRED else 0.99)
        assert drift(source, made, feed) <= getattr(TRAINED[name], precision)
        again = convert(made, tmp_path / "again.onnx", precision=precision, data=data)
        assert again.unchanged


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_network_inside_if_branches_comes_out_low(tmp_path, precision):
    source = path_of("vad")
    convert(source, tmp_path / "vad.onnx", precision=precision)
    low = {"fp16": "FLOAT16", "bf16": "BFLOAT16"}[precision]
    model = io.load(tmp_path / "vad.onnx")
    inside = [n for holder in model.graph for graph in subgraphs_of(holder) for n in nodes_under(graph)]
    heavy = [n for n in inside if kind_of(n) is Kind.HEAVY]
    assert len(heavy) >= 16
    assert all(element_type(n.inputs[0]).name == low for n in heavy)


@pytest.mark.parametrize("name", TRAINED)
def test_tensorrt_accepts_what_it_accepted(tmp_path, name):
    pytest.importorskip("tensorrt_rtx")
    from mpdeploy.engine.backends import backend_here

    source = path_of(name)
    with backend_here("rtx").parse(source):
        pass
    for precision in ("fp16", "bf16"):
        made = tmp_path / f"{precision}.onnx"
        convert(source, made, precision=precision)
        with backend_here("rtx").parse(made) as parsed:
            assert parsed.network.census.compute.get(precision, 0) > 0
