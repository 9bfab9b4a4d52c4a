"""Raising the opset: where a type needs it, and only if the numbers stay what they are."""

import onnx
import onnx.checker
import onnx.helper
import onnx.version_converter
import onnx_ir as ir

from mpdeploy.errors import ModelError
from mpdeploy.graph import canonical, check, io, meaning, types, written
from mpdeploy.graph.operators import opset_of
from mpdeploy.graph.scope import all_graphs, all_nodes, all_values
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
        source = onnx.ModelProto.FromString(before)
        meaning.write_out(source)
        check.set_aside(source)
        after = onnx.version_converter.convert_version(source, opset)
        check.put_back(after)
        meaning.keep(after, opset_of(model, ""), opset, _shapes(model))
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


def _shapes(model: ir.Model) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes that are known, by the name of the value; a size that only a run can tell is None."""
    return {
        str(value.name): tuple(d if isinstance(d, int) else None for d in value.shape)
        for value in all_values(model)
        if value.shape is not None
    }


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
