"""Model files under test."""

import dataclasses
import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpdeploy import records
from mpdeploy.conversion.api import convert, plan_path_of
from mpdeploy.plan.record import PrecisionPlan

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


def layer_norm_nodes(result):
    return [
        helper.make_node("ReduceMean", ["x"], ["mean"], name="mean", axes=[-1]),
        helper.make_node("Sub", ["x", "mean"], ["d"], name="sub"),
        helper.make_node("Pow", ["d", "two"], ["d2"], name="pow"),
        helper.make_node("ReduceMean", ["d2"], ["var"], name="var", axes=[-1]),
        helper.make_node("Add", ["var", "eps"], ["ve"], name="add"),
        helper.make_node("Sqrt", ["ve"], ["sd"], name="sqrt"),
        helper.make_node("Div", ["d", "sd"], [result], name="div"),
    ]


def initializers(**arrays):
    return [numpy_helper.from_array(np.asarray(v), k) for k, v in arrays.items()]


@pytest.fixture
def layer_norm(write):
    """A4: a LayerNorm of primitive operators, whose square overflows FP16 where a row's spread is large."""
    constants = initializers(two=np.float32(2), eps=np.float32(1e-5))
    return write("norm", layer_norm_nodes("y"), {"x": ["N", 64]}, {"y": ["N", 64]}, constants)


@pytest.fixture
def case_a4(write):
    """A4, then A9: the LayerNorm, then an L2 norm that overflows, too."""
    nodes = [
        *layer_norm_nodes("q"),
        helper.make_node("MatMul", ["q", "w"], ["z"], name="matmul"),
        helper.make_node("ReduceL2", ["z"], ["n"], name="l2", axes=[-1]),
        helper.make_node("Div", ["z", "n"], ["y"], name="normal"),
    ]
    w = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32) * 2000
    constants = initializers(two=np.float32(2), eps=np.float32(1e-5), w=w)
    return write("a4", nodes, {"x": ["N", 64]}, {"y": ["N", 64]}, constants)


@pytest.fixture
def spread():
    """Three feeds for ``case_a4``; only the last has a large spread."""
    rng = np.random.default_rng(0)
    return [{"x": (rng.standard_normal((1, 64)) * scale).astype(np.float32)} for scale in (1.0, 3.0, 600.0)]


@pytest.fixture
def all_low():
    """Return a function: FP32 model -> the same with every operator that may be low made low, as a bad plan does."""

    def convert_all(source, precision="fp16"):
        target = source.with_name(f"{source.stem}_{precision}.onnx")
        convert(source, target, precision=precision)
        plan = records.load(PrecisionPlan, plan_path_of(target))
        low = tuple(dataclasses.replace(d, format=plan.precision) if d.code != "MP301" else d for d in plan.decisions)
        edited = target.with_suffix(".edited.json")
        records.save(dataclasses.replace(plan, decisions=low), edited)
        convert(source, target, precision=precision, plan=edited)
        return target

    return convert_all
