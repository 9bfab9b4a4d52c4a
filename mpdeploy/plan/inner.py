"""What happens inside an operator: sums, squares, variances, exponentials, epsilons, batch-norm parameters.

Fused normalisations and softmax accumulate in FP32 in the runtimes whatever their operands' type; sums written as
operators of their own (reductions, pooling, a decomposed layer norm) do not.
"""

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mpdeploy.graph.traits import Kind, kind_of
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.rounding import rounded
from mpdeploy.plan.bounds import Bounds
from mpdeploy.plan.constants import small_array
from mpdeploy.plan.evidence import Evidence
from mpdeploy.plan.groups import Group
from mpdeploy.plan.reasons import Code, Reason
from mpdeploy.plan.reductions import reduced_count

_SQUARING = frozenset({"ReduceL2", "ReduceSumSquare", "LpNormalization", "GlobalLpPool", "LpPool"})
_EXPONENTIAL = frozenset({"ReduceLogSumExp", "Softplus", "Mish"})
_EPSILON_DEFAULT = {"LRN": None, "SimplifiedLayerNormalization": 1e-5}
_BATCH_NORM_LIMIT = 0.01


def inner_reason(evidence: Evidence, group: Group) -> Reason | None:
    """Return why the group's operator would go wrong inside in low precision; None if it would not."""
    node = group.node
    if group.operand_set or not group.consumes:
        return None
    if node.op_type in _EXPONENTIAL:
        return _exponential(evidence, node)
    if node.op_type == "BatchNormalization":
        return _batch_normalization(evidence.low, node)
    check = _CHECKS.get(kind_of(node))
    return check(evidence, node) if check is not None else None


def _exponential(evidence: Evidence, node: ir.Node) -> Reason | None:
    top = evidence.bounds_of(node.inputs[0]).high
    if top <= math.log(evidence.low.max):
        return None
    return Reason(
        Code.INNER_RANGE,
        f"{node.op_type} takes exp of up to {top:.3g}, {evidence.low.value} ends at exp(11)"
        if evidence.low is Format.FP16
        else f"{node.op_type} takes exp of up to {top:.3g}",
    )


def _sums(evidence: Evidence, node: ir.Node) -> Reason | None:
    """Sums in a plain loop: their partial sums must fit, and so must the number of terms."""
    low = evidence.low
    if node.op_type in ("ReduceProd", "CumProd"):
        return None  # the product is the output, whose range the value rules know
    measured = evidence.inner_of(node)
    bounds = evidence.bounds_of(node.inputs[0])
    count = measured.count if measured is not None else reduced_count(node)
    if measured is not None:
        partial, how = measured.partial_sum * evidence.policy.margin, "measured"
    else:
        partial, how = _sum_bound(node, bounds, count), "bound"
    if partial > low.max:
        many = f"{count} terms" if count is not None else "terms without a known number"
        return Reason(Code.INNER_RANGE, f"{many} add up to {partial:.3g} ({how}), {low.value} holds {low.max:.6g}")
    if count is None or count > low.max_exact_integer:
        many = str(count) if count is not None else "an unknown number of"
        return Reason(Code.ACCUMULATION, f"{many} terms in one sum, {low.value} keeps {low.facts.precision} bits")
    return None


def _sum_bound(node: ir.Node, bounds: Bounds, count: int | None) -> float:
    if count == 0 or bounds.magnitude == 0:
        return 0.0
    if count is None:
        return math.inf
    term = bounds.magnitude**2 if node.op_type in _SQUARING and bounds.magnitude < 1e150 else bounds.magnitude
    return count * term


def _normalisation(evidence: Evidence, node: ir.Node) -> Reason | None:
    """Fused normalisations sum in FP32, but a square must still fit the format where a kernel keeps it there."""
    low = evidence.low
    measured = evidence.inner_of(node)
    if measured is not None:
        square, variance = measured.centred_square * evidence.policy.margin, measured.variance
    else:
        spread = sum(evidence.bounds_of(v).magnitude for v in node.inputs[: 2 if "Skip" in node.op_type else 1])
        square, variance = (2 * spread) ** 2 if spread < 1e150 else math.inf, 0.0
    if square > low.max:
        how = "measured" if measured is not None else "bound"
        text = f"(x - mean)² reaches {square:.3g} ({how}), {low.value} holds {low.max:.6g}"
        return Reason(Code.INNER_RANGE, text)
    epsilon = _epsilon(node)
    if epsilon is None or epsilon >= low.smallest_subnormal * 4:
        return None
    if variance > max(low.smallest_normal, 100 * epsilon):
        return None  # the epsilon never decides
    return Reason(Code.EPSILON, f"epsilon {epsilon:.3g} vanishes, the variance goes down to {variance:.3g}")


def _epsilon(node: ir.Node) -> float | None:
    if "epsilon" in node.attributes:
        return node.attributes["epsilon"].as_float()
    return _EPSILON_DEFAULT.get(node.op_type, 1e-5)


def _softmax(evidence: Evidence, node: ir.Node) -> Reason | None:
    value = node.inputs[0]
    shape = value.shape if value is not None else None
    axis = node.attributes["axis"].as_int() if "axis" in node.attributes else -1
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    length = shape[axis]
    if isinstance(length, int) and length > evidence.low.max / 2:
        return Reason(
            Code.INNER_RANGE, f"{length} exponentials in one sum, {evidence.low.value} holds {evidence.low.max:.6g}"
        )
    return None


def _batch_normalization(low: Format, node: ir.Node) -> Reason | None:
    """Compare the scale and shift that the rounded parameters give with the true ones."""
    parameters = [small_array(v, 1 << 16) for v in node.inputs[1:5]]
    if any(p is None for p in parameters):
        return Reason(Code.POLICY, "BatchNormalization whose parameters are not stored")
    epsilon = _epsilon(node) or 0.0
    exact = _scale_and_shift([np.asarray(p, np.float64) for p in parameters], epsilon)
    with np.errstate(all="ignore"):
        coarse = [rounded(np.asarray(p, np.float32), low).astype(np.float64) for p in parameters]
        low_epsilon = float(rounded(np.array([epsilon], np.float32), low)[0])
        got = _scale_and_shift(coarse, low_epsilon)
    for name, true, rough in zip(("scale", "shift"), exact, got, strict=True):
        size = np.max(np.abs(true), initial=0.0)
        error = np.max(np.abs(true - rough), initial=0.0)
        if not error <= _BATCH_NORM_LIMIT * max(size, 1e-30):
            worst = "not finite" if not np.isfinite(error) else f"off by {error / max(size, 1e-30):.1%}"
            return Reason(Code.CONSTANT_LOSS, f"its {name} would be {worst} with rounded parameters")
    return None


def _scale_and_shift(
    parameters: list[NDArray[np.float64]], epsilon: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    gamma, beta, mean, variance = parameters
    scale = gamma / np.sqrt(variance + epsilon)
    return scale, beta - mean * scale


_CHECKS: dict[Kind, Callable[[Evidence, ir.Node], Reason | None]] = {
    Kind.SUM: _sums,
    Kind.NORM: _normalisation,
    Kind.SOFTMAX: _softmax,
}
