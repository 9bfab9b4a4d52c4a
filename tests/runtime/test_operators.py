"""Single operators in FP16: every tensor is a number of the format, and the result is near ONNX's own example."""

import functools
import warnings

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from mpdeploy.errors import MpdeployError
from mpdeploy.graph import io
from mpdeploy.runtime.emulator import EmulatorRunner
from mpdeploy.runtime.observe import Observer
from mpdeploy.runtime.twin import float_twin, low_formats

# Those whose results may leave the format, or that take types, bounds or counts from a place of their own.
OPERATORS = """ArgMax AveragePool BatchNormalization Clip ConstantOfShape ConvTranspose CumSum DepthToSpace
    DequantizeLinear Einsum Expand EyeLike GRU Gemm GridSample GroupNormalization Identity
    InstanceNormalization LSTM MatMul MaxPool OneHot Pad Pow ReduceMean ReduceSum Resize RNN
    ScatterElements ScatterND Softmax Split TopK Where""".split()
# What rounding rightly changes; BatchNormalization in training overwrites its own input in ONNX Runtime.
KNOWN = 22  # ONNX's examples are of its newest opset, which ONNX Runtime need not know
WIDE = (TensorProto.FLOAT, TensorProto.DOUBLE)
CHANGED = (
    "large_number",
    "training_mode",
    "mod_float64_mixed_sign_fmod_0",
    "mixed_sign_float",
    "linear_int16",
    "linear_uint16",
)


@functools.cache
def examples():
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None)}


def halved(model):
    """Every float32 and float64 made float16, inputs, outputs, constants and types in attributes included."""
    half = onnx.ModelProto()
    half.CopyFrom(model)
    (imported,) = (o for o in half.opset_import if o.domain == "")
    imported.version, half.ir_version = min(imported.version, KNOWN), min(half.ir_version, 10)
    for value in (*half.graph.input, *half.graph.output):
        if value.type.tensor_type.elem_type in WIDE:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for attribute in (a for n in half.graph.node for a in n.attribute):
        if attribute.name in ("dtype", "to") and attribute.i in WIDE:
            attribute.i = TensorProto.FLOAT16
        if attribute.type == AttributeProto.TENSOR and attribute.t.data_type in WIDE:
            array = numpy_helper.to_array(attribute.t).astype(np.float16)
            attribute.t.CopyFrom(numpy_helper.from_array(array))
    return half


def cases_of(operator):
    for case in examples().values():
        nodes = case.model.graph.node if case.model is not None else ()
        if len(nodes) == 1 and nodes[0].op_type == operator and not any(word in case.name for word in CHANGED):
            yield case


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_each_tensor_is_a_number_of_the_format(operator, tmp_path):
    ran = 0
    for case in cases_of(operator):
        half, path = halved(case.model), tmp_path / "m.onnx"
        try:
            onnx.checker.check_model(half, full_check=True)
            onnx.save(half, path)
            model = io.load(path)
            runner = EmulatorRunner(model, case.name)
        except (MpdeployError, onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue  # no such operator in FP16, or none in ONNX Runtime
        inputs, outputs = case.data_sets[0]
        feed = {spec.name: np.asarray(v) for spec, v in zip(case.model.graph.input, inputs, strict=True)}
        if not low_formats(model) or any(a.dtype.kind in "OU" for a in feed.values()):
            continue
        low = {n: a.astype(np.float16) if a.dtype in (np.float32, np.float64) else a for n, a in feed.items()}
        got = runner.run(low)
        wide = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in low.items()}
        names = [v.name for n in model.graph for v in n.outputs if v.name and str(v.dtype) == "FLOAT16"]
        for name, array in Observer(float_twin(model), names, case.name).run(wide):
            with np.errstate(over="ignore"):
                on_grid = array.astype(np.float16).astype(np.float32)
            np.testing.assert_array_equal(array, on_grid, err_msg=f"{case.name}: {name}")
        for info, want in zip(case.model.graph.output, outputs, strict=True):
            have = np.asarray(got[info.name])
            if have.dtype == np.float16:
                size = np.abs(want).mean() if want.size else 0
                np.testing.assert_allclose(have, want, rtol=5e-3, atol=1e-2 * size + 1e-6, err_msg=case.name)
            else:
                np.testing.assert_array_equal(have, want, err_msg=case.name)
        ran += 1
    assert ran, "no example ran"


@pytest.mark.parametrize(
    ("op", "opset", "attributes", "want"),
    [
        ("Clip", 6, {"min": 0.1, "max": 0.7}, [0.1, 0.3, 0.7]),
        ("Pad", 2, {"pads": [1, 0], "value": 0.1}, [0.1, -1, 0.3, 2]),
    ],
)
def test_bounds_and_fillings_written_as_attributes_round(load, op, opset, attributes, want):
    """0.1 is no half: before opset 11 it stands in an attribute, in float32."""
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node(op, ["h"], ["p"], **attributes),
        helper.make_node("Cast", ["p"], ["y"], to=TensorProto.FLOAT),
    ]
    model = load(nodes, {"x": ("fp32", [3])}, {"y": ("fp32", [len(want)])}, opset=max(opset, 7))
    got = EmulatorRunner(model, "m").run({"x": np.float32([-1, 0.3, 2])})["y"]
    np.testing.assert_array_equal(got, np.float16(want).astype(np.float32))
