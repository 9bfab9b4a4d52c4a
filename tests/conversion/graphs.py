"""Small graphs in ONNX's own text form, each a fault that some user had or could have with a converter.

The text of a case is its signature, ``inputs -> outputs``, and a line per node.  A node is named after its first
result unless the line begins with ``[a_name]``.  Float and integer weights are given as arrays; a weight named
``graph/w`` belongs to the subgraph of that name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

Feed = Mapping[str, object]
IR_OF_OPSET = {7: 4, 8: 4, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9, 21: 10}
BOTH = ("fp16", "bf16")
_LARGEST = 512  # identities beyond would be large


@dataclass(frozen=True)
class Case:
    """A graph and a feed.

    ``low``: the nodes that must run in the low format.  ``formats``: the low formats that the case is about.
    ``blind``: the numbers must be right without data, too.  ``runs``: some runtime can execute the source.
    ``natural``: converting the result again changes nothing even if it does not say that it was converted.
    ``drawn``: the graph makes sense between products in low precision (see ``between_products``).
    """

    name: str
    text: str
    feed: Feed
    weights: Mapping[str, object] = field(default_factory=dict)
    opset: int = 17
    domains: Mapping[str, int] = field(default_factory=dict)
    functions: str = ""
    low: tuple[str, ...] = ()
    formats: tuple[str, ...] = BOTH
    blind: bool = True
    runs: bool = True
    named: bool = True
    natural: bool = True
    drawn: bool = True
    tweak: Callable[[onnx.ModelProto], object] | None = None

    def build(self) -> onnx.ModelProto:
        """Return the model."""
        inputs, _, rest = self.text.strip().partition("->")
        outputs, _, body = rest.partition("\n")
        imports = ", ".join(f'"{d}" : {v}' for d, v in [*self.domains.items(), ("", self.opset)])
        head = f"<ir_version: {IR_OF_OPSET.get(self.opset, 10)}, opset_import: [{imports}]>"
        model = onnx.parser.parse_model(f"{head}\ng ({inputs}) => ({outputs}) {{\n{body}\n}}\n{self.functions}")
        for key, value in self.weights.items():
            graph_name, _, name = key.rpartition("/")
            graph = next(g for g in graphs_of(model.graph) if graph_name in ("", g.name))
            graph.initializer.append(tensor(name, value))
        if self.named:
            for graph in graphs_of(model.graph):
                for node in graph.node:
                    node.name = node.name or next(filter(None, node.output))
        if self.tweak is not None:
            self.tweak(model)
        return model

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the feed; Python's floats become float32."""
        return {name: array(value) for name, value in self.feed.items()}


def array(value):
    """Return an array; float64 that nobody asked for becomes float32."""
    if isinstance(value, np.ndarray):
        return value
    made = np.asarray(value)
    return made.astype(np.float32) if made.dtype == np.float64 else made


def tensor(name, value):
    return value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(array(value), name)


def graphs_of(graph):
    """Yield a graph and its subgraphs."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs_of(attribute.g)


def normal(*shape, scale=1.0, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def uniform(*shape, low=0.0, high=1.0, seed=0):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(np.float32)


def metadata(model, **entries):
    helper.set_model_props(model, entries)


def between_products(model):
    """Put a product with the identity behind each float input and before each float output.

    A graph by itself may stay FP32 because its inputs and outputs are; between products that run low, it is drawn
    towards low, and only its hazards keep it back.
    """
    graph = model.graph
    first, last, names = [], [], {}
    for value in graph.input:
        if size := _last_dim(value):
            names[value.name] = f"{value.name}.product"
            first.append(_product(graph, value.name, names[value.name], size))
    for node in graph.node:
        _rename(node, names)
    made = {name for node in graph.node for name in node.output}
    for value in graph.output:
        if (size := _last_dim(value)) and value.name in made:
            inner = f"{value.name}.factor"
            for node in graph.node:
                _rename(node, {value.name: inner})
                node.output[:] = [inner if name == value.name else name for name in node.output]
            last.append(_product(graph, inner, value.name, size))
    nodes = [*first, *graph.node, *last]
    del graph.node[:]
    graph.node.extend(nodes)


def _product(graph, value, result, size):
    graph.initializer.append(tensor(f"{result}.eye", np.eye(size, dtype=np.float32)))
    return helper.make_node("MatMul", [value, f"{result}.eye"], [result], f"{result}.matmul")


def _rename(node, names):
    node.input[:] = [names.get(name, name) for name in node.input]
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            for inner in attribute.g.node:
                _rename(inner, names)


def _last_dim(value):
    dims = value.type.tensor_type.shape.dim
    is_float = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    return dims[-1].dim_value if is_float and dims and dims[-1].dim_value <= _LARGEST else 0
