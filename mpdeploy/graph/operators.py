"""Type rules of operators, read from the ONNX schemas (and, for com.microsoft, from ONNX Runtime's)."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import onnx.defs
import onnx_ir as ir

_ELEMENT_TYPES = {
    "float": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "double": ir.DataType.DOUBLE,
    "string": ir.DataType.STRING,
    "bool": ir.DataType.BOOL,
    "complex64": ir.DataType.COMPLEX64,
    "complex128": ir.DataType.COMPLEX128,
    "float8e4m3fn": ir.DataType.FLOAT8E4M3FN,
    "float8e4m3fnuz": ir.DataType.FLOAT8E4M3FNUZ,
    "float8e5m2": ir.DataType.FLOAT8E5M2,
    "float8e5m2fnuz": ir.DataType.FLOAT8E5M2FNUZ,
    "float8e8m0": ir.DataType.FLOAT8E8M0,
    "float4e2m1": ir.DataType.FLOAT4E2M1,
    **{name: ir.DataType[name.upper()] for name in ("int2", "uint2", "int4", "uint4", "int8", "uint8", "int16")},
    **{name: ir.DataType[name.upper()] for name in ("uint16", "int32", "uint32", "int64", "uint64")},
}


# Operators defined by a function whose body mixes its operands with float32 constants: by the schema they take half
# precision, by their own definition they cannot.
_FLOAT_BODIES = frozenset({"MeanVarianceNormalization"})
_HALVES = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})


@dataclass(frozen=True)
class Slot:
    """One formal parameter: its type variable or concrete type, and whether it takes any number of values."""

    type: str
    variadic: bool = False
    homogeneous: bool = True


@dataclass(frozen=True)
class Signature:
    """An operator's parameters and, for each type variable or concrete type, the element types that it may take."""

    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    allowed: Mapping[str, frozenset[ir.DataType]]

    def input(self, index: int) -> Slot | None:
        """Return the parameter that the node's input at ``index`` fills."""
        return _slot(self.inputs, index)

    def output(self, index: int) -> Slot | None:
        """Return the parameter that the node's output at ``index`` fills."""
        return _slot(self.outputs, index)


def _slot(slots: tuple[Slot, ...], index: int) -> Slot | None:
    if index < len(slots):
        return slots[index]
    return slots[-1] if slots and slots[-1].variadic else None


_NORM_TYPES = ("tensor(float16)", "tensor(bfloat16)", "tensor(float)", "tensor(double)")
_RUNTIME_OWN = {"SimplifiedLayerNormalization": 0, "LayerNormalization": 17}  # below which opset; 0: in all


def is_runtimes_own(op_type: str, domain: str, opset: int) -> bool:
    """Tell whether ONNX Runtime has an operator in the standard domain where ONNX has none, as its optimiser writes."""
    return domain in ("", "ai.onnx") and op_type in _RUNTIME_OWN and not 0 < _RUNTIME_OWN[op_type] <= opset


@functools.cache
def signature(domain: str, op_type: str, opset: int) -> Signature | None:
    """Return the type rules of an operator at an opset version; None where nobody publishes them."""
    if domain == "com.microsoft":
        return _contrib().get(op_type)
    if is_runtimes_own(op_type, domain, opset):
        main, statistics = Slot("T"), Slot("U")
        inputs = (main, main) if op_type.startswith("Simplified") else (main, main, main)
        return _signature(inputs, (main, statistics, statistics), {"T": _NORM_TYPES, "U": ("tensor(float)",)})
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except (onnx.defs.SchemaError, TypeError):  # the latter for a version of more than 32 bits
        return None
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic

    def slots(parameters: Any) -> tuple[Slot, ...]:
        return tuple(Slot(p.type_str, p.option == variadic, p.is_homogeneous) for p in parameters)

    rules = _signature(
        slots(schema.inputs),
        slots(schema.outputs),
        {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints},
    )
    if op_type in _FLOAT_BODIES:
        return replace(rules, allowed={variable: types - _HALVES for variable, types in rules.allowed.items()})
    return rules


@functools.cache
def _contrib() -> dict[str, Signature]:
    text = resources.files("mpdeploy.graph").joinpath("contrib_schemas.json").read_text("utf-8")
    return {
        name: _signature(
            tuple(Slot(*p) for p in operator["inputs"]), tuple(Slot(*p) for p in operator["outputs"]), operator["types"]
        )
        for name, operator in json.loads(text)["operators"].items()
    }


def _signature(inputs: tuple[Slot, ...], outputs: tuple[Slot, ...], types: Mapping[str, Any]) -> Signature:
    allowed = {variable: frozenset(map(element_type, names)) - {None} for variable, names in types.items()}
    for slot in (*inputs, *outputs):
        if slot.type not in allowed:
            allowed[slot.type] = frozenset({element_type(slot.type)}) - {None}
    return Signature(inputs, outputs, allowed)  # type: ignore[arg-type]


def element_type(text: str) -> ir.DataType | None:
    """Return the element type in a schema's type string such as ``seq(tensor(float))``; None for maps."""
    inner = text
    for container in ("optional", "seq", "sparse_tensor", "tensor"):
        if inner.startswith(container + "("):
            inner = inner[len(container) + 1 : -1]
    return _ELEMENT_TYPES.get(inner)


def opset_of(model: ir.Model, domain: str) -> int:
    """Return the version of a domain that the model imports (1 where it names none)."""
    imports = model.graph.opset_imports
    if domain in ("", "ai.onnx"):
        return imports.get("", imports.get("ai.onnx", 1))
    return imports.get(domain, 1)
