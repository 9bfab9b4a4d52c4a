"""Raising the opset: where a type needs it, and only if the numbers stay what they are."""

from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.helper
import onnx.version_converter
import onnx_ir as ir
from onnx import numpy_helper

from mpdeploy.errors import ModelError
from mpdeploy.graph import canonical, check, io, types, written
from mpdeploy.graph.operators import opset_of
from mpdeploy.graph.scope import all_graphs, all_nodes
from mpdeploy.graph.tensors import StreamedTensor

NEWEST_OPSET = 24  # the newest that the runtimes and builders of today read


def raised(model: ir.Model, opset: int) -> ir.Model:
    """Return the model at a higher opset of the standard domain, each operator written so that it means the same.

    The IR version rises only if the opset asks for it.  Raises ``ModelError`` if ONNX's converter cannot do it.
    """
    if opset <= opset_of(model, ""):
        return model
    before, slots = io.serialised(model)
    try:
        after = onnx.version_converter.convert_version(onnx.ModelProto.FromString(before), opset)
        _mend(after, opset_of(model, ""), opset)
        after = canonical.canonical_proto(after)
        check.check_structure(after, "")
        after, mistaken = _as_valid_as(onnx.ModelProto.FromString(before), after)
        after = check.infer_types(after, "")
    except (RuntimeError, onnx.version_converter.ConvertError, onnx.checker.ValidationError, ModelError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"the model cannot be raised to opset {opset}: {reason[:300]}") from error
    result = ir.from_proto(after)
    _attach(result, slots)
    canonical.name_nodes(result)
    types.infer(result)
    result.meta.update(model.meta)
    if mistaken:
        written.correct_outputs(result, after, mistaken)
    result.metadata_props.update(model.metadata_props)
    result.graph.metadata_props.update(model.graph.metadata_props)
    result.producer_name, result.producer_version = model.producer_name, model.producer_version
    result.domain, result.model_version, result.doc_string = model.domain, model.model_version, model.doc_string
    result.graph.doc_string = model.graph.doc_string
    imports = [onnx.helper.make_opsetid(d, v) for d, v in result.graph.opset_imports.items() if d in ("", "ai.onnx")]
    result.ir_version = max(model.ir_version, onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True))
    return result


def _as_valid_as(before: onnx.ModelProto, after: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return the raised model, and the outputs whose declared shape had to be corrected to keep it valid.

    Newer versions of operators let inference see more, and so what a file declares wrongly.
    """
    if not check.strict_fault(after) or check.strict_fault(before):
        return after, ()
    loose, mistaken = written.loosened(after)
    if fault := check.strict_fault(loose):
        raise ModelError(fault)
    return loose, mistaken


def _mend(proto: onnx.ModelProto, before: int, after: int) -> None:
    """Write out what older operators meant and ONNX's converter forgets; ``ModelError`` where that is impossible."""
    for node in (n for graph in canonical.proto_graphs(proto.graph) for n in graph.node if not n.domain):
        if node.op_type == "Resize" and before <= 10 < after:
            # Until opset 10 Resize, and Upsample before it, knew one way to place the pixels.
            node.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            node.attribute.append(onnx.helper.make_attribute("nearest_mode", _nearest_mode(node, proto)))
        if node.op_type == "Hardmax" and before <= 12 < after:
            # Until opset 12 it worked on all dimensions from `axis` on as if they were one.
            raise ModelError(f"Hardmax '{node.name}' has another meaning from opset 13 on")
        if node.op_type == "Scan" and before <= 8 < after:
            # Until opset 8 it ran over batches; ONNX's converter takes the batch from the model's inputs as well.
            raise ModelError(f"Scan '{node.name}' has another meaning from opset 9 on")


def _nearest_mode(node: onnx.NodeProto, proto: onnx.ModelProto) -> str:
    """How the old Resize chose the nearest pixel: the one before where it enlarged, the one behind where not."""
    if any(a.name == "mode" and a.s != b"nearest" for a in node.attribute):
        return "floor"
    scales = _constant(proto, node.input[-1])
    if scales is None or (scales.min() < 1 < scales.max()):
        raise ModelError(f"Resize '{node.name}' to the nearest pixel has another meaning from opset 11 on")
    return "ceil" if scales.min() < 1 else "floor"


def _constant(proto: onnx.ModelProto, name: str) -> np.ndarray[Any, Any] | None:
    for graph in canonical.proto_graphs(proto.graph):
        for tensor in graph.initializer:
            if tensor.name == name:
                return numpy_helper.to_array(tensor)
        for node in graph.node:
            if node.op_type == "Constant" and node.output[0] == name and node.attribute[0].name == "value":
                return numpy_helper.to_array(node.attribute[0].t)
    return None


def _attach(model: ir.Model, slots: list[StreamedTensor]) -> None:
    """Put the streamed tensors back in the place of the references that stood for them."""
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = slots[value.const_value.offset or 0]
    for node in all_nodes(model):
        for name, attribute in list(node.attributes.items()):
            if attribute.type is ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                node.attributes[name] = ir.AttrTensor(name, slots[attribute.value.offset or 0])
