"""A converted model is held to the very plan it was converted with."""

import pytest

from mpdeploy import records
from mpdeploy.conversion.api import convert
from mpdeploy.engine.building import build_engine
from mpdeploy.errors import BuildError, UsageError
from mpdeploy.files import sha256_of
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.record import PrecisionPlan

pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")

WEIGHTS = ",".join(str(0.01 * i) for i in range(64))
NET = f"""<ir_version: 10, opset_import: ["" : 17]>
net (float[4,8] x) => (float[4,8] y, float[4,8] shares) <float[8,8] w = {{{WEIGHTS}}}, float two = {{2.0}}> {{
    m = MatMul(x, w)  r = Relu(m)  y = MatMul(r, w)  powers = Pow(r, two)  shares = Softmax(powers)
}}"""

OTHER = """<ir_version: 10, opset_import: ["" : 17]>
other (float[4,8] a) => (float[4,8] b) { b = Relu(a) }"""


@pytest.fixture(params=["fp16", "bf16"])
def converted(text_model, tmp_path, request):
    return convert(text_model(NET), tmp_path / "low.onnx", precision=request.param)


def test_the_converters_own_plan_is_followed(converted, tmp_path):
    record = build_engine(converted.model, tmp_path / "low.engine", plan=converted.plan, expect=converted.precision)
    assert record.plan.sha256 == sha256_of(tmp_path / "low.plan.json")
    plan = records.load(PrecisionPlan, tmp_path / "low.plan.json")
    formats = {name: decision.format for decision in plan.decisions for name in decision.values}
    # `y` is an output that stays FP32 while it is computed low; `powers` stays FP32.
    assert (formats["y"], formats["powers"]) == (converted.precision, Format.FP32)


@pytest.mark.parametrize("value", ["y", "m", "powers"])
def test_an_edit_of_the_plan_is_noticed(converted, tmp_path, value):
    path = tmp_path / "low.plan.json"
    low = converted.precision.value
    other = low if value == "powers" else "fp32"
    document = records.to_builtins(records.load(PrecisionPlan, path))
    for decision in document["decisions"]:
        if value in decision["values"]:
            decision["format"] = other
    path.write_bytes(records.to_json(document))
    is_output = value == "y"  # its FP32 form is there, too: a plan of FP32 is then not contradicted
    if is_output:
        build_engine(converted.model, tmp_path / "low.engine", plan=path)
    else:
        with pytest.raises(BuildError, match=f"does not follow the plan: '{value}' is .*, planned {other}"):
            build_engine(converted.model, tmp_path / "low.engine", plan=path)


def test_a_plan_of_another_model_proves_nothing(converted, text_model, tmp_path):
    with pytest.raises(BuildError, match="no low-precision value of the plan is found"):
        build_engine(text_model(OTHER), tmp_path / "low.engine", plan=converted.plan)
    with pytest.raises(UsageError, match="not found"):
        build_engine(text_model(OTHER), tmp_path / "low.engine", plan=tmp_path / "nothing.json")
