"""What is about to be written: checked as strictly as what is read, its declarations held to what inference finds."""

from dataclasses import replace

import onnx
import onnx_ir as ir

from mpdeploy.errors import InternalError, ModelError
from mpdeploy.graph import canonical, check, io


def check_written(model: ir.Model) -> None:
    """Raise ``InternalError`` if the file that ``save`` would write were less valid than the one that was read.

    Weights are not looked at, so this costs as much for a large model as for a small one.
    """
    source = io.source_of(model)
    proto = onnx.ModelProto.FromString(io.serialised(model)[0])
    try:
        check.check_structure(proto, "")
    except ModelError as error:
        raise InternalError(f"the converted model would be invalid: {error.what}", where=str(source.path)) from error
    fault = check.strict_fault(proto)
    if fault and not check.strict_fault(canonical.canonical_proto(io.read_skeleton(source.path))):
        raise InternalError(f"the converted model would be invalid: {fault}", where=str(source.path))


def loosened(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return the model without the shapes it declares where inference finds others, and the outputs this is about.

    Shapes in the file may be wrong without harm until an operator that inference understands stands before them.
    An output gets the shape that was inferred.
    """
    free = onnx.ModelProto()
    free.CopyFrom(proto)
    for graph in canonical.proto_graphs(free.graph):
        del graph.value_info[:]
        for value in graph.output:
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(free, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError:
        return proto, ()
    wrong = []
    for declared, found, kept in zip(proto.graph.output, inferred.graph.output, free.graph.output, strict=True):
        if _contradicts(declared, found):
            wrong.append(declared.name)
            kept.CopyFrom(found)
        else:
            kept.CopyFrom(declared)
    return free, tuple(wrong)


def correct_outputs(model: ir.Model, proto: onnx.ModelProto, names: tuple[str, ...]) -> None:
    """Let the model's file declare these outputs as ``proto`` does."""
    source = io.source_of(model)
    found = {value.name: value for value in proto.graph.output if value.name in names}
    model.meta[io.SOURCE] = replace(
        source, outputs=source.outputs | found, value_infos=frozenset(), mistaken=source.mistaken | set(names)
    )


def _contradicts(declared: onnx.ValueInfoProto, found: onnx.ValueInfoProto) -> bool:
    ours, theirs = declared.type.tensor_type, found.type.tensor_type
    if not (ours.HasField("shape") and theirs.HasField("shape")):
        return False
    if len(ours.shape.dim) != len(theirs.shape.dim):
        return True
    pairs = zip(ours.shape.dim, theirs.shape.dim, strict=True)
    return any(a.HasField("dim_value") and b.HasField("dim_value") and a.dim_value != b.dim_value for a, b in pairs)
