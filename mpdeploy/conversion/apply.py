"""Carry out a plan: set types, round weights, put in Casts where a value changes its format."""

from collections.abc import Iterable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mpdeploy.conversion.barriers import put_barriers
from mpdeploy.errors import InternalError, ModelError
from mpdeploy.graph.names import Names
from mpdeploy.graph.scope import all_nodes
from mpdeploy.graph.tensors import RoundedTensor, StreamedTensor
from mpdeploy.graph.types import dtype_attribute, element_type, is_container, type_faults, write_out_result_types
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.rounding import cast
from mpdeploy.plan.constants import constant_tensor
from mpdeploy.plan.groups import ONNX_TYPE, Group, Operand, is_constant, is_float
from mpdeploy.plan.planner import Planned
from mpdeploy.plan.target import target_named


def apply(planned: Planned) -> ir.Model:
    """Return the planned model, changed in place to the formats that its plan gives.

    Raises ``ModelError`` if the model broke type rules before and still does, ``InternalError`` if only the result
    does: the plan's own checks should have seen that.
    """
    before = list(type_faults(planned.model))
    _Conversion(planned).run()
    faults = list(type_faults(planned.model))
    if faults and before:
        raise ModelError(f"the model is invalid: {before[0]}")
    if faults:
        raise InternalError(f"the converted model is ill-typed: {faults[0]}")
    return planned.model


class _Conversion:
    def __init__(self, planned: Planned) -> None:
        self.model, self.groups, self.plan = planned.model, planned.groups, planned.plan
        self.low = ONNX_TYPE[planned.plan.precision]
        self.is_low = {id(g): low for g, low in zip(planned.groups.all, planned.low, strict=True)}
        self.names = Names(self.model)

    def run(self) -> None:
        if any(self.is_low.values()) or self.plan.low_io:
            write_out_result_types(self.model)
        readers = self._readers()
        for group in self.groups.all:
            if self.is_low[id(group)]:
                self._retype(group)
        if self.plan.low_io:
            for value in self.model.graph.inputs:
                if is_float(value) and not is_constant(value) and not is_container(value):
                    _set_element_type(value, self.low)
                    if value.const_value is not None:  # what it is unless it is given
                        value.const_value = self._rounded(value.const_value, str(value.name))
        for value in self.groups.values:
            low, fp32 = readers.get(value, ([], []))
            if is_constant(value):
                self._convert_constant(value, low, fp32)
            elif self._is_made_low(value):
                self._cast_for(value, fp32, ir.DataType.FLOAT)
            else:
                self._cast_for(value, low, self.low)
        self._saturate()
        self._drop_idle_casts()
        if target_named(self.plan.target).builds_engines:
            put_barriers(self.model, self.names)

    def _saturate(self) -> None:
        """Limit the inputs of masked softmaxes, so that a row of -inf becomes a row of equal numbers."""
        lowest: ir.Value | None = None
        for group, decision in zip(self.groups.all, self.plan.decisions, strict=True):
            if not decision.saturate:
                continue
            if lowest is None:
                lowest = self._lowest()
            node, scores = group.node, group.node.inputs[0]
            limited = ir.node("Max", [scores, lowest], name=self.names.fresh_node(f"{node.name}_saturate"))
            result = limited.outputs[0]
            result.name = self.names.fresh(f"{node.name}_saturated")
            result.type, result.shape = ir.TensorType(self.low), scores.shape if scores is not None else None
            node.prepend(limited)
            node.replace_input_with(0, result)

    def _lowest(self) -> ir.Value:
        precision = self.plan.precision
        name = self.names.fresh(f"lowest_{precision.value}")
        tensor = self._tensor(np.array(-precision.max, np.float32), name)
        value = ir.Value(name=name, type=ir.TensorType(self.low), shape=ir.Shape([]), const_value=tensor)
        self.model.graph.initializers[name] = value
        return value

    def _readers(self) -> dict[ir.Value, tuple[list[Operand], list[Operand]]]:
        """For every value, the operands that read it in the low format, and those that read it in FP32."""
        readers: dict[ir.Value, tuple[list[Operand], list[Operand]]] = {}
        for group in self.groups.all:
            for operand in group.consumes:
                sides = readers.setdefault(operand.value, ([], []))
                sides[0 if self.is_low[id(group)] else 1].append(operand)
        for operand in self.groups.stored:
            readers.setdefault(operand.value, ([], []))[1].append(operand)
        for operand in self.groups.outputs:
            sides = readers.setdefault(operand.value, ([], []))
            sides[0 if self.plan.low_io else 1].append(operand)
        return readers

    def _is_made_low(self, value: ir.Value) -> bool:
        producer = self.groups.producer.get(value)
        return self.is_low[id(producer)] if producer is not None else self.plan.low_io

    def _retype(self, group: Group) -> None:
        for value in group.produces:
            _set_element_type(value, self.low)
        node = group.node
        name = dtype_attribute(node)
        if name is not None and any(v.producer() is node for v in group.produces):
            node.attributes[name] = ir.AttrInt64(name, int(self.low))
        if node.op_type == "Optional" and "type" in node.attributes:  # an empty one
            kind: ir.TypeAndShape = node.attributes["type"].value
            low = ir.TypeAndShape(_with_element_type(kind.type, self.low), kind.shape)
            node.attributes["type"] = ir.AttrTypeProto("type", low)
        if node.op_type == "ConstantOfShape" and not node.domain:
            filled = node.attributes["value"].as_tensor().numpy() if "value" in node.attributes else np.zeros(1)
            node.attributes["value"] = ir.AttrTensor("value", self._tensor(np.asarray(filled, np.float32), ""))

    def _tensor(self, array: NDArray[np.float32], name: str) -> ir.TensorProtocol:
        return ir.Tensor(cast(array, self.plan.precision), dtype=self.low, name=name)

    def _convert_constant(self, value: ir.Value, low: list[Operand], fp32: list[Operand]) -> None:
        if not low:
            return
        tensor = constant_tensor(value)
        if tensor is None:
            raise InternalError(f"constant '{value.name}' has no data")
        target = value
        if fp32:
            target = self._copy_of(value)
            _redirect(low, target)
        rounded = self._rounded(tensor, str(target.name))
        producer = target.producer()
        _set_element_type(target, self.low)
        if producer is None:
            target.const_value = rounded
        else:
            producer.attributes.clear()
            producer.attributes["value"] = ir.AttrTensor("value", rounded)

    def _rounded(self, tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
        if isinstance(tensor, StreamedTensor):
            return RoundedTensor(tensor, self.plan.precision, self.low, name)
        return self._tensor(np.asarray(tensor.numpy()), name)

    def _copy_of(self, value: ir.Value) -> ir.Value:
        name = self.names.fresh(f"{value.name}_{self.plan.precision.value}")
        producer, shape = value.producer(), value.shape
        if producer is not None:
            node = ir.Node("", "Constant", [], name=self.names.fresh_node(name), num_outputs=1)
            copy = node.outputs[0]
            copy.name = name
            producer.append(node)
        else:
            copy = ir.Value(name=name, const_value=value.const_value)
            graph = value.graph
            if not isinstance(graph, ir.Graph):
                raise InternalError(f"initializer '{value.name}' belongs to no graph")
            graph.initializers[name] = copy
        copy.type, copy.shape = ir.TensorType(ir.DataType.FLOAT), shape
        return copy

    def _cast_for(self, value: ir.Value, operands: list[Operand], target: ir.DataType) -> None:
        """Give these operands the value in another format, through one Cast right behind its producer."""
        if not operands:
            return
        format_name = Format.FP32.value if target is ir.DataType.FLOAT else self.plan.precision.value
        original = str(value.name)
        main_output = any(o.user is self.model.graph for o in operands)
        if main_output:  # the declared name stays with the declared type
            value.name = self.names.fresh(f"{original}_{self.plan.precision.value}")
        name = original if main_output else self.names.fresh(f"{original}_{format_name}")
        node = ir.node("Cast", [value], {"to": int(target)}, name=self.names.fresh_node(f"{original}_to_{format_name}"))
        result = node.outputs[0]
        result.name, result.type, result.shape = name, ir.TensorType(target), value.shape
        producer = value.producer()
        if producer is not None:
            producer.append(node)
        else:
            self._prepend(value, node)
        _redirect(operands, result)

    def _prepend(self, value: ir.Value, node: ir.Node) -> None:
        graph = value.graph
        if not isinstance(graph, ir.Graph):
            raise InternalError(f"'{value.name}' belongs to no graph")
        if len(graph):
            graph.insert_before(graph[0], node)
        else:
            graph.append(node)

    def _drop_idle_casts(self) -> None:
        """Drop the source's own Casts that now go from a type to itself."""
        for node in list(all_nodes(self.model)):
            if node.op_type != "Cast" or node.domain or node.inputs[0] is None or node.graph is None:
                continue
            given, made = node.inputs[0], node.outputs[0]
            if element_type(given) is not element_type(made) or element_type(given) is not self.low:
                continue
            if not made.is_graph_output() and node.graph is given.graph:
                made.replace_all_uses_with(given)
                node.graph.remove(node, safe=True)


def _redirect(operands: Iterable[Operand], value: ir.Value) -> None:
    for operand in operands:
        if isinstance(operand.user, ir.Node):
            operand.user.replace_input_with(operand.index, value)
        else:
            operand.user.outputs[operand.index] = value


def _set_element_type(value: ir.Value, dtype: ir.DataType) -> None:
    value.type = _with_element_type(value.type, dtype)


def _with_element_type(kind: ir.TypeProtocol | None, dtype: ir.DataType) -> ir.TypeProtocol:
    """A new type: the old one may be shared with a copy of the model."""
    if isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        return type(kind)(_with_element_type(kind.elem_type, dtype))
    return ir.TensorType(dtype)
