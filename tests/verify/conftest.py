"""Model files under test."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
LOW = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a model of the given nodes, inputs and outputs (all float32) to a file."""

    def save(name, nodes, inputs, outputs, initializers=(), opset=17, kinds=None):
        def infos(values):
            return [helper.make_tensor_value_info(n, (kinds or {}).get(n, FLOAT), shape) for n, shape in values.items()]

        graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), list(initializers))
        path = tmp_path / f"{name}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
        return path

    return save


@pytest.fixture
def mlp(write):
    """Return a function that writes a three-layer classifier of 16 features and 4 classes, in FP32 or lower."""

    def build(name, low=None, spoil=None):
        rng = np.random.default_rng(5)
        sizes = [16, 32, 32, 4]
        weights, nodes, value = [], [], "x"
        if low:
            nodes.append(helper.make_node("Cast", ["x"], ["x_low"], to=LOW[low]))
            value = "x_low"
        for i, (a, b) in enumerate(itertools.pairwise(sizes)):
            w = (rng.standard_normal((a, b)) / np.sqrt(a)).astype(np.float32)
            if spoil is not None and i == 1:
                w = spoil(w)
            if low:
                with np.errstate(over="ignore"):
                    raw = w.astype(helper.tensor_dtype_to_np_dtype(LOW[low])).tobytes()
                weights.append(helper.make_tensor(f"w{i}", LOW[low], w.shape, raw, raw=True))
            else:
                weights.append(numpy_helper.from_array(w, f"w{i}"))
            nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"]))
            value = f"m{i}"
            if i < 2:
                nodes.append(helper.make_node("Relu", [value], [f"r{i}"]))
                value = f"r{i}"
        nodes.append(helper.make_node("Cast", [value], ["logits"], to=FLOAT))
        return write(name, nodes, {"x": ["N", 16]}, {"logits": ["N", 4]}, weights)

    return build


@pytest.fixture
def samples():
    """100 samples for ``mlp`` with labels."""
    rng = np.random.default_rng(11)
    return {"x": rng.standard_normal((100, 16)).astype(np.float32), "labels": rng.integers(0, 4, 100)}
