"""Is the model valid, and of which type and shape is every value?  Both asked of the ONNX library itself."""

import contextlib
import math
import re
from collections.abc import Iterator

import onnx
import onnx.checker
import onnx.defs
import onnx.shape_inference
import onnx_ir as ir

from mpdeploy.errors import ModelError
from mpdeploy.graph.canonical import proto_graphs, proto_tensors
from mpdeploy.graph.operators import is_runtimes_own
from mpdeploy.graph.scope import all_nodes, attribute_graph
from mpdeploy.graph.traits import is_standard

ASIDE = "mpdeploy.aside"
_MADE_UP = "unk__"  # with a number, the sizes that ONNX's inference gives a name
_STANDARD = frozenset({"", "ai.onnx", "ai.onnx.ml"})
# What the ONNX libraries raise, each at some place, on a file whose parts contradict each other.
_LIBRARY_FAULTS = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


@contextlib.contextmanager
def invalid_model(where: str) -> Iterator[None]:
    """Turn whatever the ONNX libraries raise on a damaged model into one ``ModelError``."""
    try:
        yield
    except ModelError as error:
        if error.where:
            raise
        raise ModelError(error.what, where=where, remedy=error.remedy) from error
    except _LIBRARY_FAULTS as error:
        cause: BaseException = error
        if isinstance(error, ir.serde.SerdeError):  # only the innermost says what was wrong
            while inner := cause.__cause__ or cause.__context__:
                cause = inner
        raise ModelError(f"the model is invalid: {_one_line(cause)}", where=where) from error


def check_structure(proto: onnx.ModelProto, where: str) -> None:
    """Raise ``ModelError`` with the node's name if the model breaks a rule of the ONNX specification."""
    known = onnx.defs.onnx_opset_version()
    for opset in proto.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > known:
            raise ModelError(
                f"the model is written for opset {opset.version}, the ONNX library here knows {known}",
                where=where,
                remedy="update the onnx package, or export for an older opset",
            )
    for value in (*proto.graph.input, *proto.graph.output):
        if _holds_map(value.type):
            raise ModelError(
                f"'{value.name}' is a map from keys to numbers, which neither a plan nor an engine takes",
                where=where,
                remedy="export the tensor before it: skl2onnx does so with options={'zipmap': False}",
            )
    weightless = onnx.ModelProto()
    weightless.CopyFrom(proto)
    for tensor in proto_tensors(weightless):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            # The checker would look for the data in the current folder; it has nothing to say about content.
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.dims[:] = [0]
        elif not _is_whole(tensor):
            raise ModelError(f"the data of tensor '{tensor.name}' does not fill its shape", where=where)
    for value in (*weightless.graph.input, *weightless.graph.output):
        if value.type.HasField("tensor_type"):  # of unknown rank: the checker minds, no runtime does
            value.type.tensor_type.shape.SetInParent()
    set_aside(weightless)
    with invalid_model(where):
        onnx.checker.check_model(weightless)


def _holds_map(kind: onnx.TypeProto) -> bool:
    if kind.HasField("sequence_type"):
        return _holds_map(kind.sequence_type.elem_type)
    if kind.HasField("optional_type"):
        return _holds_map(kind.optional_type.elem_type)
    return bool(kind.HasField("map_type"))


def set_aside(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Give operators that ONNX Runtime alone has in the standard domain a domain of their own; return their nodes.

    ONNX's checker and converter refuse them there, and pass over domains that they do not know.
    """
    versions = [o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    found = [
        node
        for graph in proto_graphs(proto.graph)
        for node in graph.node
        if is_runtimes_own(node.op_type, node.domain, max(versions, default=1))
    ]
    for node in found:
        node.domain = ASIDE
    if found:
        proto.opset_import.add(domain=ASIDE, version=1)
    return found


def put_back(proto: onnx.ModelProto) -> None:
    """Undo ``set_aside``."""
    for graph in proto_graphs(proto.graph):
        for node in graph.node:
            if node.domain == ASIDE:
                node.domain = ""
    kept = [o for o in proto.opset_import if o.domain != ASIDE]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)


def infer_types(proto: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """Return the model with the types and shapes of its values filled in, as far as ONNX knows its operators.

    Raises ``ModelError`` with the node's name if an operator gets a type that it does not take.  A shape that
    inference finds contradictory is left unknown: runtimes accept many such models.
    """
    strict = all(o.domain in _STANDARD for o in proto.opset_import)
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=strict, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        # Two types on one operator come under either heading.
        if "[TypeInferenceError]" in str(error) or "inconsistent type" in str(error):
            raise ModelError(f"the model is invalid: {_one_line(error)}", where=where) from error
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=False, data_prop=True)
    _forget_made_up_sizes(inferred)
    return inferred


def _forget_made_up_sizes(proto: onnx.ModelProto) -> None:
    """Leave the sizes unknown that inference names itself in subgraphs, whose values are written: it renames them."""
    for graph in list(proto_graphs(proto.graph))[1:]:
        for dim in _dims(graph):
            if dim.dim_param.startswith(_MADE_UP):
                dim.Clear()


def _dims(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield from value.type.tensor_type.shape.dim


def strict_fault(proto: onnx.ModelProto) -> str:
    """Return what strict inference of types and shapes finds wrong in a model, in a line; empty if nothing."""
    try:
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except _LIBRARY_FAULTS as error:
        return _one_line(error)
    return ""


def _is_whole(tensor: onnx.TensorProto) -> bool:
    """Tell whether a tensor holds as much data as its type and shape ask for."""
    count: int = math.prod(tensor.dims)
    if tensor.data_type == onnx.TensorProto.STRING:
        return len(tensor.string_data) == count
    try:
        bits: int = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError) as error:
        raise ModelError(f"tensor '{tensor.name}' has no element type that ONNX knows ({tensor.data_type})") from error
    if tensor.HasField("raw_data"):
        return len(bytes(tensor.raw_data)) == math.ceil(count * bits / 8)
    fields = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
    stored = sum(len(getattr(tensor, field)) for field in fields)
    if tensor.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
        return stored == 2 * count
    return stored == (math.ceil(count * bits / 8) if bits < 8 else count)


def check_subgraphs(model: ir.Model, where: str) -> None:
    """Raise ``ModelError`` if an If, Loop or Scan and the subgraphs in it do not fit each other in number."""
    for node in all_nodes(model):
        if is_standard(node) and not _fits_its_subgraphs(node):
            raise ModelError(
                f"the model is invalid: {node.op_type} '{node.name}' has other numbers of inputs or outputs than "
                "its subgraph asks for",
                where=where,
            )


def _fits_its_subgraphs(node: ir.Node) -> bool:
    inputs, outputs = len(node.inputs), len(node.outputs)
    if node.op_type == "If":
        return all(len(attribute_graph(node, name).outputs) == outputs for name in ("then_branch", "else_branch"))
    if node.op_type not in ("Loop", "Scan"):
        return True
    body = attribute_graph(node, "body")
    takes, gives = len(body.inputs), len(body.outputs)
    if node.op_type == "Loop":  # iteration and condition in, condition out
        return takes == 2 + max(inputs - 2, 0) and takes - 1 <= gives == outputs + 1
    states = takes - node.attributes["num_scan_inputs"].as_int()
    return inputs - takes in (0, 1) and 0 <= states <= gives == outputs  # opset 8 has sequence_lens first


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    text = re.sub(r"^\[(ShapeInferenceError|TypeInferenceError)\]\s*", "", text)
    return text if len(text) <= 400 else text[:400] + "…"
