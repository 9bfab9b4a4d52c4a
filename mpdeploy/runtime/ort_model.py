"""A model in the form that ONNX Runtime takes."""

from typing import Any

import numpy as np
import onnx_ir as ir

from mpdeploy.graph.patience import carried
from mpdeploy.graph.scope import all_graphs, all_nodes

_LARGE = 1024  # bytes; smaller weights may decide shapes, which ONNX Runtime infers from the model alone


def without_weights(model: ir.Model) -> tuple[bytes, dict[str, ir.TensorProtocol]]:
    """Return the model as bytes, and apart from it the large weights by name.

    Handing weights over as they are spares two copies, and protobuf's limit of 2 GiB.
    """
    copy = carried(model, model.clone())
    weights: dict[str, ir.TensorProtocol] = {}
    for name, value in copy.graph.initializers.items():
        tensor = value.const_value
        if tensor is not None and tensor.nbytes >= _LARGE and _ort_can_take(tensor) and value.uses():
            weights[name] = tensor
            value.const_value = ir.ExternalTensor(
                "weights", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name
            )
    for graph in all_graphs(copy):
        for value in graph.initializers.values():
            if value.name not in weights and isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _in_memory(value.const_value)
    for node in all_nodes(copy):
        # ONNX Runtime infers types itself; what a file says of them may be stale.
        for output in node.outputs:
            if not output.is_graph_output():
                output.type = output.shape = None
        for key, attribute in list(node.attributes.items()):
            if attribute.type is ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                node.attributes[key] = ir.AttrTensor(key, _in_memory(attribute.value))
    return ir.to_proto(copy).SerializeToString(), weights


def _ort_can_take(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype.bitwidth >= 8 and tensor.dtype != ir.DataType.STRING


def _in_memory(tensor: ir.ExternalTensor) -> ir.Tensor[Any]:
    return ir.Tensor(np.asarray(tensor.numpy()), dtype=tensor.dtype, name=tensor.name)
