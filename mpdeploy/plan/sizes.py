"""How many elements pass through a value in one run: by its shape, as the data showed it, and how often a body runs."""

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from mpdeploy.graph.scope import all_nodes, attribute_graph, graph_of, subgraphs_of
from mpdeploy.graph.shapes import guessed_dims, guessed_size, known_size
from mpdeploy.plan.constants import scalar

_UNKNOWN_TRIPS = 64  # taken for a loop whose number of iterations only a run can tell


class Sizes:
    """Sizes of a model's values; ``measured`` gives their number of elements by name where data showed it.

    What neither the model nor the data tell counts 64: a dimension, or the iterations of a loop.
    """

    def __init__(self, model: ir.Model, measured: Mapping[str, int] = MappingProxyType({})) -> None:
        self._measured = measured
        self._holder = {graph: node for node in all_nodes(model) for graph in subgraphs_of(node)}

    def elements(self, value: ir.Value, *others: ir.Value) -> int:
        """Return how many elements a value has each time that it is made; ``others`` have as many."""
        known = known_size(value)
        if known is not None:
            return known
        seen = (self._measured.get(v.name or "") for v in (value, *others))
        return next((size for size in seen if size is not None), guessed_size(value))

    def is_known(self, value: ir.Value) -> bool:
        """Tell whether a value's size is known, by its shape or by the data."""
        return known_size(value) is not None or value.name in self._measured

    def runs(self, graph: ir.Graph | None) -> int:
        """Return how often the nodes of a graph run when the model runs once."""
        count = 1
        while graph is not None and (holder := self._holder.get(graph)) is not None:
            count *= max(1, self._trips(holder))
            outer = holder.graph
            graph = outer if isinstance(outer, ir.Graph) else None
        return count

    def passing(self, value: ir.Value) -> int:
        """Return how many elements pass through a value in one run of the model."""
        return self.elements(value) * self.runs(graph_of(value))

    def _trips(self, node: ir.Node) -> int:
        if node.op_type == "Scan":
            states = len(attribute_graph(node, "body").inputs) - node.attributes["num_scan_inputs"].as_int()
            scanned = [v for v in node.inputs[-node.attributes["num_scan_inputs"].as_int() :] if v is not None]
            return self._steps(scanned[0], attribute_graph(node, "body").inputs[states]) if scanned else 1
        if node.op_type != "Loop":
            return 1
        limit = scalar(node.inputs[0])
        if limit is not None and 0 <= limit < 1 << 31:
            return int(limit)
        body = attribute_graph(node, "body")
        states = len(body.inputs) - 2
        for whole, step in zip(node.outputs[states:], body.outputs[1 + states :], strict=False):
            return self._steps(whole, step)
        return _UNKNOWN_TRIPS

    def _steps(self, whole: ir.Value, step: ir.Value) -> int:
        """How many of the body's values make up the whole."""
        size = self._measured.get(whole.name or "", known_size(whole))
        one = known_size(step)
        if size is not None and one:
            return size // one
        dims = guessed_dims(whole)
        return dims[0] if whole.shape is not None and dims else _UNKNOWN_TRIPS
