"""One form for every model: functions inlined, sparse initializers dense, all nodes named differently.

The one operator that ONNX has withdrawn, GroupNormalization of opsets 18 to 20, is written out.
"""

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.helper
import onnx.inliner
import onnx_ir as ir
from onnx import numpy_helper

from mpdeploy.errors import ModelError
from mpdeploy.graph.scope import all_nodes

_DENSE_LIMIT_BYTES = 1 << 30
_WITHDRAWN_GROUP_NORM = range(18, 21)
_GROUP_NORM_INPUTS = 3
_GROUP_NORM_EPSILON = 1e-5  # ONNX's default


def canonical_proto(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with functions inlined, sparse initializers dense, sizes of -1 or ? unknown.

    GroupNormalization as opset 18 had it, with a scale per group, is written out: ONNX has withdrawn it.
    """
    for graph in proto_graphs(proto.graph):
        _densify(graph)
        _densify_constants(graph)
        _forget_unknown_sizes(graph)
    if proto.functions:
        # Bodies may be written for another opset than the model: the inliner converts them.
        proto = onnx.inliner.inline_local_functions(proto, convert_version=True)
        for graph in proto_graphs(proto.graph):
            _densify_constants(graph)
    version = max((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), default=1)
    if version in _WITHDRAWN_GROUP_NORM:
        for graph in proto_graphs(proto.graph):
            _write_out_group_norms(graph)
    return proto


def name_nodes(model: ir.Model) -> None:
    """Give each node a name of its own: unnamed ones are named after their operator, equal ones numbered."""
    taken = {node.name for node in all_nodes(model) if node.name}
    seen: set[str] = set()
    for index, node in enumerate(all_nodes(model)):
        wanted = node.name or f"{node.op_type}_{index}"
        if wanted in seen or (not node.name and wanted in taken):
            number = 1
            while f"{wanted}__{number}" in taken or f"{wanted}__{number}" in seen:
                number += 1
            wanted = f"{wanted}__{number}"
        seen.add(wanted)
        node.name = wanted


def proto_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a model: initializers and attributes, in subgraphs and functions, too."""
    nodes: list[onnx.NodeProto] = [node for function in proto.functions for node in function.node]
    for graph in proto_graphs(proto.graph):
        yield from graph.initializer
        nodes += graph.node
    for node in nodes:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.TENSORS:
                yield from attribute.tensors


def proto_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and all its subgraphs, parents first."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from proto_graphs(attribute.g)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for inner in attribute.graphs:
                    yield from proto_graphs(inner)


def _forget_unknown_sizes(graph: onnx.GraphProto) -> None:
    """Some exporters write -1 or "?" for a size that only a run can tell; to ONNX that is a size, or one symbol."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0 or dim.dim_param == "?":
                dim.Clear()


def _write_out_group_norms(graph: onnx.GraphProto) -> None:
    """Normalise each group as one channel of an InstanceNormalization; its scale and bias are per group, too."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "GroupNormalization" or node.domain or len(node.input) != _GROUP_NORM_INPUTS:
            nodes.append(node)
            continue
        attributes = {attribute.name: attribute for attribute in node.attribute}
        epsilon = attributes["epsilon"].f if "epsilon" in attributes else _GROUP_NORM_EPSILON
        x, scale, bias = node.input
        y = node.output[0]
        label = node.name or y
        groups = numpy_helper.from_array(np.array([0, attributes["num_groups"].i, -1], np.int64), f"{y}__groups")
        graph.initializer.append(groups)
        made = onnx.helper.make_node
        nodes += [
            made("Shape", [x], [f"{y}__shape"], f"{label}_shape"),
            made("Reshape", [x, groups.name], [f"{y}__grouped"], f"{label}_grouped"),
            made("InstanceNormalization", [f"{y}__grouped", scale, bias], [f"{y}__normal"], label, epsilon=epsilon),
            made("Reshape", [f"{y}__normal", f"{y}__shape"], [y], f"{label}_ungrouped"),
        ]
    del graph.node[:]
    graph.node.extend(nodes)


def _densify(graph: onnx.GraphProto) -> None:
    for sparse in graph.sparse_initializer:
        graph.initializer.append(_dense(sparse, sparse.values.name))
    del graph.sparse_initializer[:]


def _densify_constants(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for attribute in node.attribute if node.op_type == "Constant" and not node.domain else ():
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
                dense = _dense(attribute.sparse_tensor, node.output[0])
                attribute.CopyFrom(onnx.helper.make_attribute("value", dense))


def _dense(sparse: onnx.SparseTensorProto, name: str) -> onnx.TensorProto:
    dims = list(sparse.dims)
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    size = int(np.prod(dims, dtype=np.float64))
    if size * values.itemsize > _DENSE_LIMIT_BYTES:
        raise ModelError(f"sparse tensor '{name}' would take {size} elements when dense")
    if indices.ndim != 1 and (indices < 0).any():
        raise ModelError(f"sparse tensor '{name}' has an index outside its shape {dims}")
    flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dims)
    if flat.size and (flat.min() < 0 or flat.max() >= size):
        raise ModelError(f"sparse tensor '{name}' has an index outside its shape {dims}")
    dense = np.zeros(size, values.dtype)
    dense[flat] = values
    return numpy_helper.from_array(dense.reshape(dims), name)
