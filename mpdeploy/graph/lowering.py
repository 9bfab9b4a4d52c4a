"""Lowering the opset: for runtimes whose kernels are registered for older versions of an operator only."""

import functools
from typing import Any

import onnx.defs
import onnx_ir as ir

from mpdeploy.graph.operators import opset_of
from mpdeploy.graph.patience import carried
from mpdeploy.graph.scope import all_nodes


def lowered(model: ir.Model) -> ir.Model | None:
    """Return the model at the opset below, if each of its standard operators means the same there; else None.

    It does if the older schema has the same inputs, outputs and the attributes that the node uses: newer versions
    that only allow more element types, as most have been since opset 22.
    """
    below = opset_of(model, "") - 1
    if not all(_means_the_same(node, below) for node in all_nodes(model) if node.domain in ("", "ai.onnx")):
        return None
    copy = carried(model, model.clone())
    copy.graph.opset_imports[""] = below
    return copy


def _means_the_same(node: ir.Node, below: int) -> bool:
    newer, older = _schema(node.op_type, below + 1), _schema(node.op_type, below)
    if newer is None or older is None:
        return False
    if newer.since_version == older.since_version:
        return True
    if _parameters(newer) != _parameters(older):
        return False
    old = _attributes(older)
    changed = {name for name, facts in _attributes(newer).items() if old.get(name) != facts}
    return not changed & set(node.attributes)


@functools.cache
def _schema(op_type: str, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None


def _parameters(schema: Any) -> list[list[tuple[str, str]]]:
    return [[(p.name, str(p.option)) for p in parameters] for parameters in (schema.inputs, schema.outputs)]


def _attributes(schema: Any) -> dict[str, tuple[str, bool, str]]:
    return {name: (str(a.type), a.required, str(a.default_value)) for name, a in schema.attributes.items()}
