"""What runs a model: one interface, whatever the runtime, and a record that says exactly what ran."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]

Dim = int | str | None
"""A dimension: a number, a symbol that is equal wherever it appears, or unknown."""


@dataclass(frozen=True)
class TensorSpec:
    """An input or output: name, element type by numpy's name (``bfloat16`` included), shape (None: rank unknown)."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.name} {self.dtype}"
        return f"{self.name} {self.dtype}[{','.join('?' if d is None else str(d) for d in self.shape)}]"


@dataclass(frozen=True)
class Execution:
    """Exactly what ran, for the record.

    ``precision`` says in which arithmetic; ``evidence`` whether the numbers are those that the model's declared
    formats give, and ``note`` why not, or under which assumption.
    """

    runtime: str
    version: str
    provider: str
    precision: str
    evidence: bool
    note: str = ""


class Runner(Protocol):
    """A model that is ready to run.  Arrays have exactly the types that the specs name."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that a feed must hold."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs, in the model's order."""

    def run(self, feed: Feed) -> dict[str, Array]:
        """Return the outputs by name.  A sequence comes as ``name[0]``, ``name[1]`` and so on."""

    def describe(self) -> Execution:
        """Return exactly what runs."""


def input_specs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """Return the inputs that must be fed: those of the graph that no initializer gives a default."""
    constants = model.graph.initializers
    return _specs(v for v in model.graph.inputs if v.name not in constants)


def output_specs(model: ir.Model) -> tuple[TensorSpec, ...]:
    """Return the graph's outputs."""
    return _specs(model.graph.outputs)


def takes_only_tensors(model: ir.Model) -> bool:
    """Tell whether all inputs and outputs are tensors: no sequences, nothing optional."""
    return not any(
        isinstance(value.type, ir.SequenceType | ir.OptionalType)
        for value in (*model.graph.inputs, *model.graph.outputs)
    )


def dtype_name(dtype: ir.DataType | None) -> str:
    """Return numpy's name of an ONNX element type: ``float32``, ``bfloat16``, ``string``; ``unknown`` for None."""
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return "unknown"
    return "string" if dtype == ir.DataType.STRING else str(dtype.numpy())


def _specs(values: Iterable[ir.Value]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(v.name or "", dtype_name(v.dtype), _shape(v)) for v in values)


def _shape(value: ir.Value) -> tuple[Dim, ...] | None:
    if value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else d.value for d in value.shape)
