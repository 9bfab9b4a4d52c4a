"""Operators whose meaning, or whose runtimes' reading, changes with the opset: written so that it stays.

ONNX's own converter rewrites what the specification changed on purpose; here stands what it forgets, and what
ONNX Runtime computes otherwise in a newer kernel (found by running each operator in every version it has had).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.helper
from onnx import numpy_helper

from mpdeploy.errors import ModelError
from mpdeploy.graph import canonical

Shapes = Mapping[str, tuple[int | None, ...]]
_SPATIAL = 2  # the first dimension that a window slides over


def write_out(proto: onnx.ModelProto) -> None:
    """Write a model, before it is converted, so that the converter and the newer schemas take it."""
    for _, node in _standard_nodes(proto):
        if node.op_type == "Pad" and _text(node, "mode", "constant") != "constant":
            _drop(node, "value")  # it says nothing there, and the converter would leave it behind
        if node.op_type == "MeanVarianceNormalization" and _attribute(node, "axes") is None:
            # ONNX's inference fails on the default, which is this.
            node.attribute.append(onnx.helper.make_attribute("axes", [0, 2, 3]))


def keep(proto: onnx.ModelProto, before: int, after: int, shapes: Shapes) -> None:
    """Write out what older operators meant in a converted model; ``ModelError`` where that is impossible.

    ``shapes`` are those of the values, as far as they are known.
    """
    for graph, node in list(_standard_nodes(proto)):
        if node.op_type == "Resize" and before <= 10 < after:
            # Until opset 10 Resize, and Upsample before it, knew one way to place the pixels.
            node.attribute.append(onnx.helper.make_attribute("coordinate_transformation_mode", "asymmetric"))
            node.attribute.append(onnx.helper.make_attribute("nearest_mode", _nearest_mode(node, proto)))
        if node.op_type == "Hardmax" and before <= 12 < after and not _is_last_axis(node, shapes):
            # Until opset 12 it worked on all dimensions from `axis` on as if they were one.
            raise ModelError(f"Hardmax '{node.name}' has another meaning from opset 13 on")
        if node.op_type == "Scan" and before <= 8 < after:
            # Until opset 8 it ran over batches; ONNX's converter takes the batch from the model's inputs as well.
            raise ModelError(f"Scan '{node.name}' has another meaning from opset 9 on")
        if node.op_type == "AveragePool" and before <= 18 < after:
            _fill_windows(graph, node, shapes)


def _standard_nodes(proto: onnx.ModelProto) -> Iterator[tuple[onnx.GraphProto, onnx.NodeProto]]:
    for graph in canonical.proto_graphs(proto.graph):
        yield from ((graph, node) for node in graph.node if not node.domain)


def _is_last_axis(node: onnx.NodeProto, shapes: Shapes) -> bool:
    axis = _attribute(node, "axis")
    number = 1 if axis is None else int(axis.i)  # the default until opset 12
    shape = shapes.get(node.input[0])
    return number == -1 or (shape is not None and number == len(shape) - 1)


def _nearest_mode(node: onnx.NodeProto, proto: onnx.ModelProto) -> str:
    """How the old Resize chose the nearest pixel: the one before where it enlarged, the one behind where not."""
    if _text(node, "mode", "nearest") != "nearest":
        return "floor"
    scales = _constant(proto, node.input[-1])
    if scales is None or (scales.min() < 1 < scales.max()):
        raise ModelError(f"Resize '{node.name}' to the nearest pixel has another meaning from opset 11 on")
    return "ceil" if scales.min() < 1 else "floor"


def _fill_windows(graph: onnx.GraphProto, node: onnx.NodeProto, shapes: Shapes) -> None:
    """Pad what an AveragePool that counts its padding reads, where a window may be larger than that.

    ONNX Runtime divides by the size of the window before opset 19, and from then on by what is left of it.
    """
    if not _integer(node, "count_include_pad") or _integer(node, "ceil_mode"):
        return
    if _text(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return
    window = _integers(node, "kernel_shape", [])
    strides = _integers(node, "strides", [1] * len(window))
    pads = _integers(node, "pads", [0] * 2 * len(window))
    both = [pads[i] + pads[i + len(window)] for i in range(len(window))]
    shape = shapes.get(node.input[0]) or (None,) * (_SPATIAL + len(window))
    sizes = list(zip(shape[_SPATIAL:], both, window, strides, strict=False))
    if all(stride == 1 or (size or 1) + padding >= length for size, padding, length, stride in sizes):
        return
    name = node.output[0]

    def constant(label: str, numbers: list[int]) -> str:
        graph.initializer.append(numpy_helper.from_array(np.array(numbers, np.int64), f"{name}__{label}"))
        return f"{name}__{label}"

    def added(label: str, op_type: str, *inputs: str, **attributes: Any) -> str:
        made = onnx.helper.make_node(op_type, inputs, [f"{name}__{label}"], f"{name}__{label}", **attributes)
        graph.node.insert(list(graph.node).index(node), made)
        return str(made.output[0])

    begins, ends = [0, 0, *pads[: len(window)]], [0, 0, *pads[len(window) :]]
    if None in shape[_SPATIAL:]:
        spatial = added("sizes", "Shape", node.input[0], start=_SPATIAL)
        lacking = added(
            "lacking", "Sub", constant("window", [w - p for w, p in zip(window, both, strict=True)]), spatial
        )
        missing = added("missing", "Max", lacking, constant("none", [0]))
        end = added("ends", "Add", constant("padding", ends[_SPATIAL:]), missing)
        amounts = added("pads", "Concat", constant("begins", [*begins, 0, 0]), end, axis=0)
    else:
        missing_now = [max(0, length - (size or 0) - padding) for size, padding, length, _ in sizes]
        amounts = constant("pads", [*begins, 0, 0, *(e + m for e, m in zip(ends[_SPATIAL:], missing_now, strict=True))])
    node.input[0] = added("padded", "Pad", node.input[0], amounts)
    _drop(node, "pads")
    _drop(node, "auto_pad")


def _constant(proto: onnx.ModelProto, name: str) -> np.ndarray[Any, Any] | None:
    for graph in canonical.proto_graphs(proto.graph):
        for tensor in graph.initializer:
            if tensor.name == name:
                return numpy_helper.to_array(tensor)
        for node in graph.node:
            if node.op_type == "Constant" and node.output[0] == name and node.attribute[0].name == "value":
                return numpy_helper.to_array(node.attribute[0].t)
    return None


def _attribute(node: onnx.NodeProto, name: str) -> onnx.AttributeProto | None:
    return next((a for a in node.attribute if a.name == name), None)


def _text(node: onnx.NodeProto, name: str, default: str) -> str:
    found = _attribute(node, name)
    return default if found is None else found.s.decode(errors="replace")


def _integer(node: onnx.NodeProto, name: str) -> int:
    found = _attribute(node, name)
    return 0 if found is None else int(found.i)


def _integers(node: onnx.NodeProto, name: str, default: list[int]) -> list[int]:
    found = _attribute(node, name)
    return default if found is None else list(found.ints)


def _drop(node: onnx.NodeProto, name: str) -> None:
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
