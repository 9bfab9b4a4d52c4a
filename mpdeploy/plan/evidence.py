"""Everything that the rules may look at, gathered once."""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from mpdeploy.graph.scope import all_nodes
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.statistics import TensorStats
from mpdeploy.plan import ranges
from mpdeploy.plan.bounds import UNBOUNDED, Bounds
from mpdeploy.plan.calibrate import Calibration, InnerStats
from mpdeploy.plan.constants import ConstantFacts, constant_tensor, facts_of
from mpdeploy.plan.groups import Group, Groups, is_constant
from mpdeploy.plan.policy import Policy
from mpdeploy.plan.target import Target


@dataclass(frozen=True)
class Evidence:
    """A model's groups and what is known of its values: constants, measurements, bounds; and what it is for."""

    low: Format
    policy: Policy
    target: Target
    groups: Groups
    constants: Mapping[ir.Value, ConstantFacts]
    calibration: Calibration
    bounds: Mapping[ir.Value, Bounds]
    by_node: Mapping[ir.Node, tuple[Group, ...]]

    def bounds_of(self, value: ir.Value | None) -> Bounds:
        """Return a value's bounds."""
        return UNBOUNDED if value is None else self.bounds.get(value, UNBOUNDED)

    def stats_of(self, value: ir.Value) -> TensorStats | None:
        """Return what was measured of a value, if anything finite was."""
        stats = self.calibration.values.get(value.name or "")
        return stats if stats is not None and stats.low <= stats.high else None

    def inner_of(self, node: ir.Node) -> InnerStats | None:
        """Return what was measured inside a node."""
        return self.calibration.inner.get(node.name or "")

    def main_group(self, node: ir.Node) -> Group | None:
        """Return the group of a node's main operands."""
        return next((g for g in self.by_node.get(node, ()) if g.operand_set == "" and g.node is node), None)


def gather(
    model: ir.Model, groups: Groups, low: Format, policy: Policy, calibration: Calibration, target: Target
) -> Evidence:
    """Read the constants, bound the values, and return the evidence."""
    constants: dict[ir.Value, ConstantFacts] = {}
    for value in filter(is_constant, groups.consumers):
        tensor = constant_tensor(value)
        if tensor is not None:
            constants[value] = facts_of(tensor, low)
    bounds = ranges.analyse(model, constants, calibration.values, policy.nominal, policy.margin)
    by_node: dict[ir.Node, tuple[Group, ...]] = {}
    for group in groups.all:
        by_node[group.node] = (*by_node.get(group.node, ()), group)
    assert all(node.name for node in all_nodes(model))  # noqa: S101 - given by graph.io.load
    return Evidence(low, policy, target, groups, constants, calibration, bounds, by_node)
