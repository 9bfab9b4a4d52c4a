"""Writing nodes into a graph ahead of a node, or into an empty graph."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir


class Nodes:
    """Adds nodes of one output each; every new value's name begins with that of the node's own output.

    The nodes go ahead of ``before``; into a graph by itself they go at the end.
    """

    def __init__(self, graph: ir.Graph, before: ir.Node | None, names: Iterator[str] | None = None) -> None:
        self._graph, self._before = graph, before
        prefix = (before.outputs[0].name or "") if before is not None else ""
        self._names = names or (f"{prefix}__emulated_{number}" for number in itertools.count(1))

    def inside(self, graph: ir.Graph) -> "Nodes":
        """Return the same for an empty graph, such as a body, with names that stay apart."""
        return Nodes(graph, None, self._names)

    def fresh(self) -> str:
        """Return a new name."""
        return next(self._names)

    def op(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """Add a node and return its output; attributes are numbers, lists of them, or ``ir.Attr``."""
        result = ir.Value(name=self.fresh())
        made = {
            name: value if isinstance(value, ir.Attr) else ir.convenience.convert_attribute(name, value)
            for name, value in attributes.items()
        }
        node = ir.Node("", op_type, inputs, made, outputs=[result], name=f"{result.name}__node")
        if self._before is None:
            self._graph.append(node)
        else:
            self._graph.insert_before(self._before, node)
        return result

    def ints(self, *numbers: int, scalar: bool = False) -> ir.Value:
        """Add a constant of int64 numbers."""
        array = np.int64(numbers[0]) if scalar else np.array(numbers, np.int64)
        return self.op("Constant", value=ir.AttrTensor("value", ir.Tensor(np.asarray(array))))

    def number(self, value: float) -> ir.Value:
        """Add a float32 constant."""
        return self.op("Constant", value=ir.AttrTensor("value", ir.Tensor(np.asarray(value, np.float32))))

    def double(self, value: float) -> ir.Value:
        """Add a float64 constant."""
        return self.op("Constant", value=ir.AttrTensor("value", ir.Tensor(np.asarray(value, np.float64))))

    def scaled(self, value: ir.Value, factor: float) -> ir.Value:
        """Multiply by a factor, unless it is 1."""
        return value if factor == 1 else self.op("Mul", value, self.number(factor))
