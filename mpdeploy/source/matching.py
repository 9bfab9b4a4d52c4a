"""Which values of an exported ONNX model are the outputs of which modules: looked for by name, proved by numbers."""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from mpdeploy.amp.ranges import INPUT, tensors_in
from mpdeploy.graph.io import load
from mpdeploy.runtime.observe import Observer
from mpdeploy.source.loading import LoadedModule

_SCOPES = "pkg.torch.onnx.name_scopes"  # the exporter's record of a node's enclosing modules, as a Python list
# FP32 kernels differ in the order of their sums; another tensor of the same module differs by far more.
_SAME = 1e-4

Output = tuple[str, int]  # a module's name and which tensor of its output
Array = NDArray[Any]


def match(loaded: LoadedModule, path: Path) -> dict[str, list[Output]]:
    """Return, by names of values of the ONNX model at ``path``, the module outputs that they are, innermost last.

    The exporter renames, folds and drops what modules compute, so its own record of modules only tells where to
    look: a value is taken for a module's output if both are the same numbers on the checkpoint's real examples.
    """
    outputs = _module_outputs(loaded)
    model = load(path)
    scopes = {str(v.name): modules_of(node) for node in model.graph for v in node.outputs if v.name}
    shapes = {array.shape for arrays in outputs.values() for array in arrays}
    names = [v.name for node in model.graph for v in node.outputs if v.name and _may_be_one(v, shapes)]
    feed = {spec.name: loaded.examples[spec.name].numpy() for spec in loaded.inputs}
    found: dict[str, list[Output]] = {spec.name: [(INPUT, place)] for place, spec in enumerate(loaded.inputs)}
    for name, array in Observer(model, [str(name) for name in names], str(path)).run(feed):
        for output, arrays in outputs.items():
            if output[0] in scopes[name] and any(_same(own, np.asarray(array)) for own in arrays):
                found.setdefault(name, []).append(output)
    return found


def _module_outputs(loaded: LoadedModule) -> Mapping[Output, list[Array]]:
    """Run the module on its examples; what each module gave, at each of its calls, outer modules first."""
    outputs: dict[Output, list[Array]] = {}
    handles = []
    for name, module in loaded.module.named_modules():

        def keep(module: torch.nn.Module, inputs: Any, output: Any, name: str = name) -> None:
            for index, tensor in enumerate(tensors_in(output)):
                if tensor.is_floating_point():
                    outputs.setdefault((name, index), []).append(tensor.numpy())

        handles.append(module.register_forward_hook(keep))
    try:
        with torch.no_grad():
            loaded.module(*loaded.arguments)
    finally:
        for handle in handles:
            handle.remove()
    return dict(sorted(outputs.items(), key=lambda item: (item[0][0].count("."), bool(item[0][0]))))


def modules_of(node: ir.Node) -> frozenset[str]:
    """Return the modules that a node is in, by the exporter's own record; the whole model's name is empty."""
    try:
        scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
    except (ValueError, SyntaxError):
        return frozenset()
    return frozenset(str(scope) for scope in scopes[:-1])  # the last is the operator itself


def _may_be_one(value: ir.Value, shapes: set[tuple[int, ...]]) -> bool:
    if value.type is None or value.dtype != ir.DataType.FLOAT:
        return False
    if value.shape is None:
        return True
    fixed = [dim if isinstance(dim, int) else None for dim in value.shape]
    return any(
        len(shape) == len(fixed) and all(a is None or a == b for a, b in zip(fixed, shape, strict=True))
        for shape in shapes
    )


def _same(own: Array, other: Array) -> bool:
    if own.shape != other.shape or own.size < 2 or own.min() == own.max():
        return False  # what is constant on the examples could be anything
    expected, found = own.astype(np.float64), other.astype(np.float64)
    if not (np.isfinite(expected).all() and np.isfinite(found).all()):
        return False
    return float(np.linalg.norm(expected - found)) <= _SAME * float(np.linalg.norm(expected))
