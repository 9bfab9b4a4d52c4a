"""Which operators of a tried plan spoil its result: the drift of every value along the graph, on one feed."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mpdeploy.conversion.trial import distance
from mpdeploy.graph.scope import all_nodes
from mpdeploy.plan.pins import Suspicion
from mpdeploy.runtime.observe import Observer
from mpdeploy.runtime.runner import Feed
from mpdeploy.runtime.twin import runnable

_AMPLIFIED = 8.0  # times its inputs' error: more than a sum of roundings


@dataclass(frozen=True)
class Drift:
    """How far a value is off: at most, over its largest magnitude; and by norm."""

    peak: float
    norm: float


def drifts(source: ir.Model, converted: ir.Model, feed: Feed, where: str) -> dict[str, Drift]:
    """Return the drift of each value of the main graph, by name; ``where`` names the model in errors."""
    return dict(_drifts(source, converted, feed, where))


def amplifier(source: ir.Model, found: Mapping[str, Drift], tolerance: float) -> tuple[str, str] | None:
    """Return the node that multiplied the error most, and the evidence; None if no single one did.

    ``tolerance`` is what rounding explains of a value's largest magnitude.
    """
    worst: tuple[float, str, str] | None = None
    for node in all_nodes(source):
        made, given = _around(node, {name: drift.peak for name, drift in found.items()})
        factor = made / max(given, tolerance / 50)
        if made > tolerance / 2 and factor > _AMPLIFIED and (worst is None or factor > worst[0]):
            text = f"its drift is {made:.2g} of the largest value, that of its inputs {given:.2g}"
            worst = factor, str(node.name), text
    return None if worst is None else worst[1:]


def by_guilt(source: ir.Model, found: Mapping[str, Drift]) -> list[tuple[str, Suspicion]]:
    """Return the nodes that add error to what they read, the most first."""
    ranked = []
    norms = {name: drift.norm for name, drift in found.items()}
    for node in source.graph:
        made, given = _around(node, norms)
        added = made if math.isinf(made) else math.sqrt(max(0.0, made**2 - given**2)) if made > given else 0.0
        if added > 0:
            text = f"it adds {added:.2g} to the drift of what it reads, {given:.2g}"
            ranked.append((added, str(node.name), Suspicion(text, deep=True)))
    ranked.sort(key=lambda entry: -entry[0])
    return [(name, suspicion) for _, name, suspicion in ranked]


def _around(node: ir.Node, errors: Mapping[str, float]) -> tuple[float, float]:
    """The largest error of what a node makes, and of what it reads."""
    made = max((errors.get(str(v.name), 0.0) for v in node.outputs), default=0.0)
    return made, max((errors.get(str(v.name), 0.0) for v in node.inputs if v is not None), default=0.0)


def _drifts(source: ir.Model, converted: ir.Model, feed: Feed, where: str) -> Iterator[tuple[str, Drift]]:
    names = [str(v.name) for node in source.graph for v in node.outputs if v.name]
    ours, theirs = (Observer(runnable(m), names, where).run(feed) for m in (source, converted))
    waiting: dict[str, NDArray[Any]] = {}
    for name, array in ours:
        waiting[name] = array
    for name, array in theirs:
        if name in waiting:
            reference = waiting.pop(name)
            yield name, Drift(distance(reference, array), _norm(reference, array))


def _norm(reference: NDArray[Any], candidate: NDArray[Any]) -> float:
    if reference.shape != candidate.shape or reference.dtype.kind != "f":
        return distance(reference, candidate)
    r, c = reference.astype(np.float64), candidate.astype(np.float64)
    finite = np.isfinite(r)
    if not np.isfinite(c[finite]).all():
        return math.inf
    size, error = np.linalg.norm(r[finite]), np.linalg.norm((r - c)[finite])
    return float(error / size) if size > 0 else float(error > 0)
