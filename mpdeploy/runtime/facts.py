"""What a model file is, for the record: its files with their hashes, its size, the formats it computes in."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from mpdeploy.files import sha256_of
from mpdeploy.graph.io import files_of
from mpdeploy.graph.scope import all_graphs, all_nodes
from mpdeploy.graph.types import element_type
from mpdeploy.numerics.formats import Format

_FORMATS = {
    ir.DataType.DOUBLE: "fp64",
    ir.DataType.FLOAT: Format.FP32.value,
    ir.DataType.FLOAT16: Format.FP16.value,
    ir.DataType.BFLOAT16: Format.BF16.value,
}


@dataclass(frozen=True)
class FileFacts:
    """A file: its name, its size in bytes, the SHA-256 of its content."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class ModelFacts:
    """A model: its path, its files (the model's own first, then external data), what it holds.

    ``values`` counts the floating-point tensors that operators produce, ``weights`` the floating-point weight
    elements, each by format name.
    """

    path: str
    files: tuple[FileFacts, ...]
    nodes: int
    values: dict[str, int]
    weights: dict[str, int]

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(file.bytes for file in self.files)

    @property
    def coarsest(self) -> Format:
        """The format with the largest rounding error among those of the model's tensors."""
        present = [f for f in (Format.BF16, Format.FP16) if f.value in self.values or f.value in self.weights]
        return present[0] if present else Format.FP32


def model_facts(model: ir.Model, path: Path) -> ModelFacts:
    """Return the facts of a model that was loaded from ``path``; reads its files once to hash them."""
    values: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    for node in all_nodes(model):
        for value in node.outputs:
            if name := _FORMATS.get(element_type(value) or ir.DataType.UNDEFINED):
                values[name] += 1
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None:
                continue
            if name := _FORMATS.get(tensor.dtype):
                weights[name] += tensor.size
    return ModelFacts(
        path=str(path),
        files=tuple(FileFacts(f.name, f.stat().st_size, sha256_of(f)) for f in files_of(path)),
        nodes=sum(1 for _ in all_nodes(model)),
        values=dict(sorted(values.items())),
        weights=dict(sorted(weights.items())),
    )
