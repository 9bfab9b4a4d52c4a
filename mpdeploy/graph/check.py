"""Is the model valid, and of which type and shape is every value?  Both asked of the ONNX library itself."""

import re

import onnx
import onnx.checker
import onnx.shape_inference

from mpdeploy.errors import ModelError
from mpdeploy.graph.canonical import proto_tensors

_STANDARD = frozenset({"", "ai.onnx", "ai.onnx.ml"})


def check_structure(proto: onnx.ModelProto, where: str) -> None:
    """Raise ``ModelError`` with the node's name if the model breaks a rule of the ONNX specification."""
    weightless = onnx.ModelProto()
    weightless.CopyFrom(proto)
    for tensor in proto_tensors(weightless):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            # The checker would look for the data in the current folder; it has nothing to say about content.
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.dims[:] = [0]
    try:
        onnx.checker.check_model(weightless)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"the model is invalid: {_one_line(error)}", where=where) from error


def infer_types(proto: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Return the model with the types and shapes of its values filled in, as far as ONNX knows its operators.

    Raises ``ModelError`` with the node's name if an operator gets a type that it does not take.  A shape that
    inference finds contradictory is left unknown: runtimes accept many such models.
    """
    strict = all(o.domain in _STANDARD for o in proto.opset_import)
    try:
        return onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=strict, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        # Two types on one operator come under either heading.
        if "[TypeInferenceError]" in str(error) or "inconsistent type" in str(error):
            raise ModelError(f"the model is invalid: {_one_line(error)}", where=where) from error
        return onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=False, data_prop=True)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    text = re.sub(r"^\[(ShapeInferenceError|TypeInferenceError)\]\s*", "", text)
    return text if len(text) <= 400 else text[:400] + "…"
