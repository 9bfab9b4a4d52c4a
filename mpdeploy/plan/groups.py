"""The unit of decision: operands that must share one format.

Type rules tie operands together: a MatMul's two factors and its product have one type, an If's result has that of
both branches' results, a sequence that of its elements.  A *group* is such a set; a format is chosen per group.
Where a value passes from a group of one format to a group of the other, a Cast is needed.
"""

from dataclasses import dataclass, field

import onnx_ir as ir

from mpdeploy.graph.operators import Slot, opset_of, signature
from mpdeploy.graph.scope import all_nodes, attribute_graph
from mpdeploy.graph.traits import Kind, is_standard, kind_of, operand_set
from mpdeploy.graph.types import element_type, is_container
from mpdeploy.numerics.formats import Format

ONNX_TYPE = {Format.FP32: ir.DataType.FLOAT, Format.FP16: ir.DataType.FLOAT16, Format.BF16: ir.DataType.BFLOAT16}


@dataclass(frozen=True)
class Operand:
    """A place where a value is read: a node's input, or a (sub)graph's output."""

    value: ir.Value
    user: ir.Node | ir.Graph
    index: int


@dataclass(eq=False)
class Group:
    """Operands that share one format.  ``refusal`` says why they cannot be low, if the type rules forbid it."""

    node: ir.Node
    operand_set: str
    produces: list[ir.Value] = field(default_factory=list)
    consumes: list[Operand] = field(default_factory=list)
    refusal: str = ""

    @property
    def is_stored(self) -> bool:
        """Tell whether it reads stored numbers alone and computes no float: the scales of a Resize."""
        return not self.produces and all(is_constant(operand.value) for operand in self.consumes)

    @property
    def name(self) -> str:
        """The group's name in plans: the node's, with the operand set where it is not the main one."""
        return f"{self.node.name}:{self.operand_set}" if self.operand_set else str(self.node.name)


@dataclass(frozen=True)
class Groups:
    """All groups of a model in order of execution, and how float values connect them."""

    all: tuple[Group, ...]
    producer: dict[ir.Value, Group]  # values that a group computes
    consumers: dict[ir.Value, list[Group]]  # every float value that some group reads
    outputs: tuple[Operand, ...]  # float outputs of the main graph
    stored: tuple[Operand, ...] = ()  # stored numbers that no group computes with: FP32, as they are

    @property
    def values(self) -> list[ir.Value]:
        """Every float value that a group produces or reads."""
        return list(dict.fromkeys([*self.producer, *self.consumers]))


def is_float(value: ir.Value | None) -> bool:
    """Tell whether a value is float32: one whose format is for the plan to choose."""
    return value is not None and element_type(value) is ir.DataType.FLOAT


def build(model: ir.Model, low: Format) -> Groups:
    """Return the groups of a model whose types are known (see ``graph.types.infer``)."""
    builder = _Builder(model, ONNX_TYPE[low])
    for node in all_nodes(model):
        builder.add(node)
    return builder.finish()


def is_constant(value: ir.Value) -> bool:
    """Tell whether a value is stored in the model and nobody can override it: weights and constants."""
    if value.is_graph_input():
        return False
    producer = value.producer()
    return value.is_initializer() or (producer is not None and kind_of(producer) is Kind.CONSTANT)


class _Builder:
    def __init__(self, model: ir.Model, low: ir.DataType) -> None:
        self.model, self.low = model, low
        self.groups: list[Group] = []
        self.by_key: dict[tuple[ir.Node, str], Group] = {}
        self.merged: dict[int, Group] = {}
        self.controls = {
            "If": self._add_if,
            "Loop": self._add_loop,
            "Scan": self._add_scan,
            "SequenceMap": self._add_sequence_map,
        }

    def add(self, node: ir.Node) -> None:
        if kind_of(node) is Kind.CONSTANT:
            return
        if node.op_type in self.controls and is_standard(node):
            self.controls[node.op_type](node)
            return
        version = opset_of(self.model, node.domain)
        rules = signature(node.domain, node.op_type, version)
        for index, value in enumerate(node.inputs):
            if is_float(value):
                group = self._group(node, operand_set(node, index, output=False))
                group.consumes.append(Operand(value, node, index))  # type: ignore[arg-type]
                self._restrict(group, rules.input(index) if rules else None, version)
        for index, value in enumerate(node.outputs):
            if is_float(value):
                group = self._group(node, operand_set(node, index, output=True))
                group.produces.append(value)
                if group.operand_set == "statistics":
                    group.refusal = "stash_type gives its mean and deviation their type"
                self._restrict(group, rules.output(index) if rules else None, version)
        if any(element_type(v) is None for v in (*node.inputs, *node.outputs) if v is not None and v.name):
            for group in self._groups_of(node):
                group.refusal = group.refusal or "it shares its type with a value of unknown type"

    def _restrict(self, group: Group, slot: Slot | None, version: int) -> None:
        node = group.node
        rules = signature(node.domain, node.op_type, version)
        if rules is None or slot is None:
            domain = node.domain or "ai.onnx"
            group.refusal = f"the type rules of {domain}::{node.op_type} are unknown"
        elif self.low not in rules.allowed[slot.type]:
            operand = f" as its {group.operand_set}" if group.operand_set else ""
            group.refusal = f"{node.op_type} takes no {self.low.name}{operand} at opset {version}"

    def _group(self, node: ir.Node, operands: str) -> Group:
        group = self.by_key.get((node, operands))
        if group is None:
            group = self.by_key[node, operands] = Group(node, operands)
            self.groups.append(group)
        return group

    def _groups_of(self, node: ir.Node) -> list[Group]:
        return [group for (owner, _), group in self.by_key.items() if owner is node]

    def _tied(self, node: ir.Node, name: str, produces: list[ir.Value], consumes: list[Operand]) -> None:
        """One group over the border of a subgraph."""
        if not any(is_float(v) for v in [*produces, *(o.value for o in consumes)]):
            return
        group = self._group(node, name)
        group.produces += produces
        group.consumes += consumes
        version = opset_of(self.model, "")
        rules = signature("", node.op_type, version)
        if rules is None or self.low not in rules.allowed[rules.outputs[-1].type]:
            group.refusal = f"{node.op_type} takes no {self.low.name} at opset {version}"
        if not all(is_float(v) for v in [*produces, *(o.value for o in consumes)]):
            group.refusal = "one side of the subgraph's border has an unknown type"

    def _add_if(self, node: ir.Node) -> None:
        branches = [attribute_graph(node, name) for name in ("then_branch", "else_branch")]
        for k, output in enumerate(node.outputs):
            results = [Operand(branch.outputs[k], branch, k) for branch in branches]
            self._tied(node, f"output {k}", [output], results)

    def _add_loop(self, node: ir.Node) -> None:
        body = attribute_graph(node, "body")
        states = len(body.inputs) - 2
        for k in range(states):
            initial = node.inputs[2 + k]
            reads = [Operand(body.outputs[1 + k], body, 1 + k)]
            if initial is not None:
                reads.append(Operand(initial, node, 2 + k))
            self._tied(node, f"state {k}", [node.outputs[k], body.inputs[2 + k]], reads)
        for k in range(len(body.outputs) - 1 - states):
            index = 1 + states + k
            reads = [Operand(body.outputs[index], body, index)]
            self._tied(node, f"scan output {k}", [node.outputs[states + k]], reads)

    def _add_scan(self, node: ir.Node) -> None:
        body = attribute_graph(node, "body")
        scans = node.attributes["num_scan_inputs"].as_int()
        states = len(body.inputs) - scans
        shift = len(node.inputs) - len(body.inputs)  # opset 8 has sequence_lens first
        for k in range(states):
            reads = [Operand(body.outputs[k], body, k)]
            initial = node.inputs[shift + k]
            if initial is not None:
                reads.append(Operand(initial, node, shift + k))
            self._tied(node, f"state {k}", [node.outputs[k], body.inputs[k]], reads)
        for k in range(scans):
            given = node.inputs[shift + states + k]
            reads = [] if given is None else [Operand(given, node, shift + states + k)]
            self._tied(node, f"scan input {k}", [body.inputs[states + k]], reads)
        for k in range(len(body.outputs) - states):
            reads = [Operand(body.outputs[states + k], body, states + k)]
            self._tied(node, f"scan output {k}", [node.outputs[states + k]], reads)

    def _add_sequence_map(self, node: ir.Node) -> None:
        """Sequences go in and out element by element; BF16 ones it does not know: all keep their type."""
        body = attribute_graph(node, "body")
        produces = [v for v in (*node.outputs, *body.inputs) if is_float(v)]
        consumes = [Operand(v, node, i) for i, v in enumerate(node.inputs) if v is not None and is_float(v)]
        consumes += [Operand(v, body, i) for i, v in enumerate(body.outputs) if is_float(v)]
        self._tied(node, "elements", produces, consumes)
        for group in self._groups_of(node):
            group.refusal = "SequenceMap keeps the type of its sequences"

    def finish(self) -> Groups:
        self._merge_containers()
        stored = tuple(operand for group in self.groups if group.is_stored for operand in group.consumes)
        self.groups = [group for group in self.groups if not group.is_stored]
        producer = {value: group for group in self.groups for value in group.produces}
        readers: dict[ir.Value, dict[Group, None]] = {}
        for group in self.groups:
            for operand in group.consumes:
                readers.setdefault(operand.value, {})[group] = None
        consumers = {value: list(groups) for value, groups in readers.items()}
        main = self.model.graph
        outputs = tuple(Operand(v, main, i) for i, v in enumerate(main.outputs) if is_float(v))
        return Groups(tuple(self.groups), producer, consumers, outputs, stored)

    def _merge_containers(self) -> None:
        """No Cast converts a sequence: all groups that touch one become one."""
        touching: dict[ir.Value, list[Group]] = {}
        for group in self.groups:
            for value in [*group.produces, *(o.value for o in group.consumes)]:
                if is_container(value):
                    touching.setdefault(value, []).append(group)
        for value, groups in touching.items():
            first = self._find(groups[0])
            for group in groups[1:]:
                self._absorb(first, self._find(group))
            if value.is_graph_input() and value.graph is self.model.graph:
                first.refusal = first.refusal or "it shares its type with a sequence that is a graph input"
            if value in self.model.graph.outputs:
                first.refusal = first.refusal or "it shares its type with a sequence that is a graph output"

    def _find(self, group: Group) -> Group:
        while id(group) in self.merged:
            group = self.merged[id(group)]
        return group

    def _absorb(self, keep: Group, gone: Group) -> None:
        if keep is gone:
            return
        keep.produces += gone.produces
        keep.consumes += gone.consumes
        keep.refusal = keep.refusal or gone.refusal
        self.merged[id(gone)] = keep
        self.groups.remove(gone)
