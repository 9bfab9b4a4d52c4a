"""Data in, statistics out: what every value and every accumulation reached over all samples."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mpdeploy.graph.patience import carried
from mpdeploy.graph.scope import all_nodes
from mpdeploy.graph.shapes import known_size
from mpdeploy.graph.traits import Kind, is_standard, kind_of
from mpdeploy.numerics.handover import MeasuredRanges
from mpdeploy.numerics.statistics import TensorStats, stats_of
from mpdeploy.plan.groups import is_float
from mpdeploy.plan.reductions import reduced_axes
from mpdeploy.runtime.fit import fit
from mpdeploy.runtime.observe import Observer
from mpdeploy.runtime.ort import OrtRunner
from mpdeploy.runtime.runner import Feed, input_specs
from mpdeploy.runtime.segments import fixed_values
from mpdeploy.runtime.twin import runnable

_SQUARING = frozenset({"ReduceL2", "ReduceSumSquare", "LpNormalization", "GlobalLpPool"})
_FIXED_LIMIT = 1 << 20  # elements; larger ones are weights in another layout
_EXPONENTIAL = frozenset({"ReduceLogSumExp"})


@dataclass(frozen=True)
class InnerStats:
    """What an operator reached inside, over all samples.

    For sums: ``partial_sum`` bounds every partial sum, ``count`` is the most elements added into one.  For
    normalisations: ``centred_square`` is the largest (x - mean)², ``variance`` the smallest variance.  For softmax:
    ``row_maximum`` is the smallest maximum of a row (-infinity if a row held nothing finite).
    """

    partial_sum: float = 0.0
    count: int = 0
    centred_square: float = 0.0
    variance: float = float("inf")
    row_maximum: float = float("inf")

    def merged(self, other: "InnerStats") -> "InnerStats":
        """Return what holds for both."""
        return InnerStats(
            max(self.partial_sum, other.partial_sum),
            max(self.count, other.count),
            max(self.centred_square, other.centred_square),
            min(self.variance, other.variance),
            min(self.row_maximum, other.row_maximum),
        )


@dataclass(frozen=True)
class Calibration:
    """Statistics by value name, inner statistics by node name, the largest sizes seen, and where they come from.

    ``trained``: they were measured in training, so only some values have any, and of these only the bounds are known.
    """

    values: dict[str, TensorStats] = field(default_factory=dict)
    inner: dict[str, InnerStats] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    data: str = ""
    samples: int = 0
    trained: bool = False


def handed_over(ranges: MeasuredRanges) -> Calibration:
    """Return what training measured (``ranges.json``) in the form that planning reads.

    How small the numbers were is not known: ``smallest`` is 0, the worst case.
    """
    values = {name: TensorStats(low, high, 0.0, 1) for name, (low, high) in ranges.bounds.items()}
    return Calibration(values=values, data=f"training of {ranges.recipe}", trained=True)


def calibrate(model: ir.Model, feeds: Iterable[Feed], where: str, data: str) -> Calibration:
    """Run the model on every feed and return the statistics of its float values.

    ``where`` names the model in errors, ``data`` the feeds in plans.  Memory does not grow with the number of feeds.
    """
    probes: dict[str, list[ir.Node]] = {}
    for node in all_nodes(model):
        source = node.inputs[0] if node.inputs else None
        if (
            source is not None
            and is_float(source)
            and kind_of(node) in (Kind.SUM, Kind.NORM, Kind.SOFTMAX)
            and is_standard(node)
        ):
            probes.setdefault(str(source.name), []).append(node)
    names = [str(v.name) for v in model.graph.inputs if is_float(v)]
    names += [str(v.name) for node in model.graph for v in node.outputs if is_float(v) and v.type is not None]
    running = runnable(model)
    observer = Observer(running, names, where)
    fixed = _fixed_statistics(running, where)
    specs = input_specs(running)
    calibration = Calibration(values=fixed, data=data)
    for feed in feeds:
        for name, array in observer.run(fit(feed, specs, data).feed):
            known = calibration.values.get(name, TensorStats())
            calibration.values[name] = known.merged(stats_of(array))
            calibration.sizes[name] = max(calibration.sizes.get(name, 0), int(np.size(array)))
            for node in probes.get(name, ()):
                inner = inner_stats(node, np.asarray(array))
                if inner is not None:
                    key = str(node.name)
                    calibration.inner[key] = calibration.inner.get(key, InnerStats()).merged(inner)
        calibration = replace(calibration, samples=calibration.samples + 1)
    return calibration


def _fixed_statistics(model: ir.Model, where: str) -> dict[str, TensorStats]:
    """Return the statistics of the small values that are computed from weights alone: they are the same in any run."""
    fixed = fixed_values(model.graph)
    nodes = [node for node in model.graph if kind_of(node) is not Kind.CONSTANT]
    values = [v for node in nodes for v in node.outputs if v in fixed and is_float(v)]
    small = [v for v in values if (known_size(v) or _FIXED_LIMIT) < _FIXED_LIMIT]
    if not small:
        return {}
    graph = ir.convenience.extract(model.graph, [], small)
    runner = OrtRunner(carried(model, ir.Model(graph, ir_version=model.ir_version)), where)
    return {name: stats_of(array) for name, array in runner.run({}).items()}


def inner_stats(node: ir.Node, array: NDArray[Any]) -> InnerStats | None:
    """Return what a summing or normalising node reaches inside on one input; None if its axes are unknown."""
    if kind_of(node) is Kind.SOFTMAX:
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
        return InnerStats(row_maximum=float(array.max(axis=axis).min())) if array.size and array.ndim else None
    axes = reduced_axes(node, array.ndim)
    if axes is None or not array.size or not np.isfinite(array).all():
        return None
    count = int(np.prod([array.shape[a] for a in axes], dtype=np.int64))
    x = array.astype(np.float64)
    if kind_of(node) is Kind.NORM or node.op_type == "MeanVarianceNormalization":
        centred = x if node.op_type.startswith(("RMS", "Simplified")) else x - x.mean(axis=axes, keepdims=True)
        square = np.square(centred)
        return InnerStats(
            partial_sum=float(np.abs(x).sum(axis=axes).max()),
            count=count,
            centred_square=float(square.max()),
            variance=float(square.mean(axis=axes).min()),
        )
    if node.op_type in _SQUARING:
        x = np.square(x)
    elif node.op_type in _EXPONENTIAL:
        with np.errstate(over="ignore"):
            x = np.exp(x)
    return InnerStats(partial_sum=float(np.abs(x).sum(axis=axes).max()), count=count)
