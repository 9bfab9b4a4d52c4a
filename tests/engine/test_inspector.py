"""What the inspector of TensorRT 10 and 11 writes, read alike."""

import json

import pytest

from mpdeploy.engine.inspector import check_inspected, formats_of
from mpdeploy.engine.proof import ProductFormat
from mpdeploy.errors import BuildError


def layer(**output):
    return {"Name": "layer", "Inputs": [], "Outputs": [{"Name": "out", **output}]}


OLDER = {
    "Layers": [
        layer(**{"Format/Datatype": "Row major linear FP16 format"}),
        layer(**{"Format/Datatype": "Channel major FP16 format where channel % 8 == 0"}),
        layer(**{"Format/Datatype": "Row major linear FP32"}),
        layer(**{"Format/Datatype": "Row major linear Int64"}),
        "a bare name",
    ],
    "Bindings": ["x", "y"],
}
NEWER = {
    "Layers": [
        layer(Format="Row major linear", Datatype="BFloat16"),
        layer(Format="Row major linear", DataType="Half"),
        layer(Format="Row major linear", Datatype="Float"),
    ],
    "I/O Tensors": [{"Name": "x"}],
}


def test_both_forms_count():
    assert formats_of(json.dumps(OLDER)) == {"fp16": 2, "fp32": 1}
    assert formats_of(json.dumps(NEWER)) == {"bf16": 1, "fp16": 1, "fp32": 1}
    assert formats_of('{"Layers": ["only", "names"]}') == {}


def test_an_engine_without_the_promised_format_fails():
    check_inspected({"fp16": 1, "fp32": 9}, ProductFormat.FP16, "m")
    check_inspected({}, ProductFormat.FP16, "m")  # names only: nothing is known
    check_inspected({"fp16": 3}, ProductFormat.FP32, "m")
    with pytest.raises(BuildError, match="came out without fp16: of its layers' outputs, 9 in fp32"):
        check_inspected({"fp32": 9}, ProductFormat.FP16, "m")
