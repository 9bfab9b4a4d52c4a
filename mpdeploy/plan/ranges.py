"""Bounds of every value: measured where there is data, else proved from the operators, else assumed.

What nothing bounds (inputs, products of weights and activations) is *assumed* to stay within a nominal magnitude;
growth beyond it (a square, an exponential, a long sum) then shows.
"""

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from mpdeploy.graph.scope import attribute_graph
from mpdeploy.graph.traits import Kind, is_standard, kind_of
from mpdeploy.graph.types import element_type
from mpdeploy.numerics.statistics import TensorStats
from mpdeploy.plan.bounds import UNBOUNDED, Bounds, hull
from mpdeploy.plan.constants import ConstantFacts, small_array
from mpdeploy.plan.groups import is_constant
from mpdeploy.plan.transfer import TRANSFER, Context

_INTEGER_BOUNDS = {
    ir.DataType.BOOL: (0.0, 1.0),
    ir.DataType.UINT8: (0.0, 255.0),
    ir.DataType.INT8: (-128.0, 127.0),
    ir.DataType.UINT4: (0.0, 15.0),
    ir.DataType.INT4: (-8.0, 7.0),
}
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})


def analyse(
    model: ir.Model,
    constants: Mapping[ir.Value, ConstantFacts],
    measured: Mapping[str, TensorStats],
    nominal: float,
    margin: float,
) -> dict[ir.Value, Bounds]:
    """Return the bounds of every value.

    ``measured`` gives statistics by value name; they are widened by the factor ``margin``, but not beyond what
    the operator proves.  ``nominal`` is the assumed magnitude of what is neither measured nor proved.
    """
    analysis = _Analysis(constants, measured, nominal, margin)
    analysis.graph(model.graph)
    return analysis.known


class _Analysis:
    def __init__(
        self,
        constants: Mapping[ir.Value, ConstantFacts],
        measured: Mapping[str, TensorStats],
        nominal: float,
        margin: float,
    ) -> None:
        self.constants, self.measured = constants, measured
        self.nominal, self.margin = nominal, margin
        self.known: dict[ir.Value, Bounds] = {}
        self.context = Context(self.known, nominal)

    def graph(self, graph: ir.Graph) -> None:
        for value in graph.inputs:
            self.settle(value, None)
        for value in graph.initializers.values():
            if is_constant(value):
                self.known[value] = self.constant(value)
        for node in graph:
            self.node(node)

    def node(self, node: ir.Node) -> None:
        kind = kind_of(node)
        if kind is Kind.CONSTANT:
            self.known[node.outputs[0]] = self.constant(node.outputs[0])
            return
        results: list[Bounds | None] = [None] * len(node.outputs)
        if kind is Kind.CONTROL:
            results = self.control(node)
        elif is_standard(node) and node.op_type in TRANSFER:
            results = [TRANSFER[node.op_type](node, self.context)] * len(node.outputs)
        for value, bounds in zip(node.outputs, results, strict=True):
            self.settle(value, bounds)

    def control(self, node: ir.Node) -> list[Bounds | None]:
        bodies = [a.as_graph() for a in node.attributes.values() if a.type is ir.AttributeType.GRAPH]
        for body in bodies:
            self.graph(body)
        if node.op_type != "If":
            return [None] * len(node.outputs)  # a loop may grow without bound
        branches = [attribute_graph(node, name) for name in ("then_branch", "else_branch")]
        return [hull(self.known[b.outputs[k]] for b in branches) for k in range(len(node.outputs))]

    def constant(self, value: ir.Value) -> Bounds:
        facts = self.constants.get(value)
        if facts is not None:
            return Bounds(facts.low, facts.high, facts.integral)
        array = small_array(value)
        if array is None or array.dtype.kind not in "iufb" or not array.size:
            return replace(UNBOUNDED, integral=element_type(value) not in _FLOATS)
        return Bounds(float(array.min()), float(array.max()), array.dtype.kind in "iub")

    def settle(self, value: ir.Value, proved: Bounds | None) -> None:
        """Record a value's bounds: measurement first, then proof, then assumption."""
        dtype = element_type(value)
        if dtype is not None and dtype not in _FLOATS:
            low, high = _INTEGER_BOUNDS.get(dtype, (UNBOUNDED.low, UNBOUNDED.high))
            if proved is not None and proved.integral:
                low, high = max(low, proved.low), min(high, proved.high)
            self.known[value] = Bounds(low, high, integral=True)
            return
        stats = self.measured.get(value.name or "")
        if stats is not None and stats.samples and stats.low <= stats.high:
            self.known[value] = self.widened(stats, proved)
        elif proved is not None:
            self.known[value] = proved
        else:
            self.known[value] = Bounds(-self.nominal, self.nominal, assumed=True)

    def widened(self, stats: TensorStats, proved: Bounds | None) -> Bounds:
        low = stats.low * self.margin if stats.low < 0 else stats.low / self.margin
        high = stats.high * self.margin if stats.high > 0 else stats.high / self.margin
        if proved is None or proved.assumed:
            return Bounds(low, high, bool(proved and proved.integral))
        return Bounds(max(low, min(proved.low, high)), min(high, max(proved.high, low)), proved.integral)
