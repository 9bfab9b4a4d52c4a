"""What the inspector of TensorRT 10 and 11 writes, read alike."""

import json

from mpdeploy.engine.inspector import doubt_of, formats_of
from mpdeploy.engine.proof import ProductFormat


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


def test_an_engine_that_does_not_show_the_promised_format_is_doubted():
    assert doubt_of({"fp16": 1, "fp32": 9}, ProductFormat.FP16) == ""
    assert doubt_of({}, ProductFormat.FP16) == ""  # names only: nothing is known
    assert doubt_of({"fp16": 3}, ProductFormat.FP32) == ""
    assert doubt_of({"fp32": 9}, None) == ""
    assert "cannot tell whether it computes in fp16: of its layers' outputs, 9 in fp32" in doubt_of(
        {"fp32": 9}, ProductFormat.FP16
    )
