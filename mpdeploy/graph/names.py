"""New names that no value or node of the model has."""

import onnx_ir as ir

from mpdeploy.graph.scope import all_nodes, all_values


class Names:
    """All names of a model, and fresh ones."""

    def __init__(self, model: ir.Model) -> None:
        self._values = {str(v.name) for v in all_values(model) if v.name}
        self._nodes = {str(n.name) for n in all_nodes(model) if n.name}

    def fresh(self, wish: str) -> str:
        """Return ``wish``, or ``wish`` with a number, as a name for a value."""
        return _fresh(wish, self._values)

    def fresh_node(self, wish: str) -> str:
        """Return ``wish``, or ``wish`` with a number, as a name for a node."""
        return _fresh(wish, self._nodes)


def _fresh(wish: str, taken: set[str]) -> str:
    name, number = wish, 1
    while name in taken:
        name, number = f"{wish}_{number}", number + 1
    taken.add(name)
    return name
