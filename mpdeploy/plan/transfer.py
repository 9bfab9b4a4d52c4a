"""How each operator maps the bounds of its inputs to those of its outputs.

``TRANSFER[op](node, context)`` returns the bounds of the node's float outputs, or None where the operator bounds
nothing.  Products of weights and activations are absent on purpose: only data or an assumption bounds them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from mpdeploy.graph.types import element_type
from mpdeploy.plan.bounds import INFINITE, UNBOUNDED, Bounds, hull
from mpdeploy.plan.constants import scalar, small_array
from mpdeploy.plan.patterns import is_deviation, is_shifted_by_maximum
from mpdeploy.plan.reductions import reduced_count


@dataclass(frozen=True)
class Context:
    """What a transfer function may ask for: bounds of earlier values, and the nominal magnitude."""

    known: dict[ir.Value, Bounds]
    nominal: float

    def of(self, node: ir.Node, index: int) -> Bounds:
        """Return the bounds of the node's input ``index``; of nothing at all where it is empty."""
        value = node.inputs[index] if index < len(node.inputs) else None
        return self.known.get(value, UNBOUNDED) if value is not None else UNBOUNDED


Transfer = Callable[[ir.Node, Context], Bounds | None]

_NEARLY = 8.0  # times the nominal magnitude
_UNKNOWN_COUNT = 1024  # terms assumed of a sum whose length only a run can tell
_UNIT = Bounds(0.0, 1.0)
_SELU_SCALE = 1.06  # SELU grows a little faster than its input
_SIGNED_UNIT = Bounds(-1.0, 1.0)


def _first(node: ir.Node, context: Context) -> Bounds:
    return context.of(node, 0)


def _hull_of_inputs(node: ir.Node, context: Context) -> Bounds:
    """The result's elements come from any input of the result's type."""
    kind = element_type(node.outputs[0])
    return hull(context.known.get(v, UNBOUNDED) for v in node.inputs if v is not None and element_type(v) is kind)


def _padded(node: ir.Node, context: Context) -> Bounds:
    filled = "mode" not in node.attributes or node.attributes["mode"].as_string() == "constant"
    if not filled or (len(node.inputs) > 2 and node.inputs[2] is not None):
        return _hull_of_inputs(node, context)
    number = node.attributes["value"].as_float() if "value" in node.attributes else 0.0
    return hull([context.of(node, 0), Bounds(number, number)])


def _monotone(function: Callable[[float], float]) -> Transfer:
    return lambda node, context: context.of(node, 0).mapped(function, integral=False)


def _fixed(bounds: Bounds) -> Transfer:
    return lambda node, context: bounds


def _where(node: ir.Node, context: Context) -> Bounds:
    return hull([context.of(node, 1), context.of(node, 2)])


def _clip(node: ir.Node, context: Context) -> Bounds:
    x = context.of(node, 0)
    if "min" in node.attributes or "max" in node.attributes:
        low = node.attributes["min"].as_float() if "min" in node.attributes else -INFINITE
        high = node.attributes["max"].as_float() if "max" in node.attributes else INFINITE
    else:
        low = context.of(node, 1).low if len(node.inputs) > 1 and node.inputs[1] is not None else -INFINITE
        high = context.of(node, 2).high if len(node.inputs) > 2 and node.inputs[2] is not None else INFINITE
    return Bounds(min(max(x.low, low), high), max(min(x.high, high), low), x.integral, x.assumed)


def _add(node: ir.Node, context: Context) -> Bounds:
    a, b = context.of(node, 0), context.of(node, 1)
    return _nominal(a.plus(b), [a, b], context)


def _sub(node: ir.Node, context: Context) -> Bounds:
    a, b = context.of(node, 0), context.of(node, 1)
    result = _nominal(a.plus(b.negated()), [a, b], context)
    return replace(result, high=min(result.high, 0.0)) if is_shifted_by_maximum(node) else result


def _mul(node: ir.Node, context: Context) -> Bounds:
    a, b = context.of(node, 0), context.of(node, 1)
    if node.inputs[0] is node.inputs[1]:
        return a.squared()
    if (a.assumed or b.assumed) and (is_deviation(node.inputs[0]) or is_deviation(node.inputs[1])):
        return _assumed(context)
    return _nominal(a.times(b), [a, b], context)


def _nominal(result: Bounds, operands: list[Bounds], context: Context) -> Bounds:
    """Keep sums and products of two assumed magnitudes at the assumption, or every deep network would seem to grow.

    A bias or an activation function that carries a little beyond it changes nothing.
    """
    if all(b.assumed and b.magnitude <= _NEARLY * context.nominal for b in operands):
        return result.within(max(context.nominal, *(b.magnitude for b in operands)))
    return result


def _div(node: ir.Node, context: Context) -> Bounds:
    a, b = context.of(node, 0), context.of(node, 1)
    return _assumed(context) if is_deviation(node.inputs[1]) and a.assumed else a.times(b.inverse())


def _assumed(context: Context) -> Bounds:
    return Bounds(-context.nominal, context.nominal, assumed=True)


def _pow(node: ir.Node, context: Context) -> Bounds | None:
    exponent, x = scalar(node.inputs[1]), context.of(node, 0)
    if exponent is None:
        return None
    if exponent == 2:
        return x.squared()
    if exponent < 0:
        return replace(UNBOUNDED, assumed=x.assumed)
    top = _power(x.magnitude, exponent)
    if x.low >= 0:
        return Bounds(_power(x.low, exponent), top, False, x.assumed)
    return Bounds(0.0 if exponent % 2 == 0 else -top, top, False, x.assumed)


def _power(x: float, exponent: float) -> float:
    try:
        return math.pow(x, exponent)
    except OverflowError:
        return INFINITE


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return INFINITE


def _sinh(x: float) -> float:
    try:
        return math.sinh(x)
    except OverflowError:
        return math.copysign(INFINITE, x)


def _log(x: float) -> float:
    return -INFINITE if x <= 0 else math.log(x) if math.isfinite(x) else INFINITE


def _softplus(x: float) -> float:
    return x if x > 30 else math.log1p(math.exp(x)) if x > -700 else 0.0


def _sum_over(node: ir.Node, context: Context) -> Bounds | None:
    x = context.of(node, 0)
    total = _summed(node, x)
    return total if node.op_type != "CumSum" else hull([x, total])


def _summed(node: ir.Node, term: Bounds) -> Bounds:
    """The sum of so many such terms; of an unknown number of them nothing is proved but the sign."""
    count = reduced_count(node)
    if count is not None:
        return term.scaled(count)
    if term.assumed:
        return term.scaled(_UNKNOWN_COUNT)
    return replace(UNBOUNDED if term.low < 0 else Bounds(0.0, INFINITE), integral=term.integral)


def _l1(node: ir.Node, context: Context) -> Bounds:
    return _summed(node, context.of(node, 0).absolute())


def _l2(node: ir.Node, context: Context) -> Bounds:
    x = context.of(node, 0).absolute()
    count = reduced_count(node)
    return x.scaled(math.sqrt(count)) if count is not None else _summed(node, x)


def _sum_square(node: ir.Node, context: Context) -> Bounds:
    return _summed(node, context.of(node, 0).squared())


def _log_softmax(node: ir.Node, context: Context) -> Bounds:
    x = context.of(node, 0)
    return Bounds(x.low - x.high - 20.0, 0.0, False, x.assumed)


def _normalised(node: ir.Node, context: Context) -> Bounds | None:
    """(x - mean) / deviation over n elements is at most sqrt(n - 1); gamma and beta scale and shift it."""
    count = reduced_count(node)
    if count is None:
        return None
    result = Bounds(-math.sqrt(count), math.sqrt(count))
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        result = result.times(context.of(node, 1))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        result = result.plus(context.of(node, 2))
    return result


def _batch_normalization(node: ir.Node, context: Context) -> Bounds | None:
    parameters = [small_array(v, 1 << 16) for v in node.inputs[1:5]]
    if any(p is None for p in parameters):
        return None
    scale, shift, mean, variance = (np.asarray(p, np.float64) for p in parameters)
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    factor = scale / np.sqrt(variance + epsilon)
    offset = shift - mean * factor
    x = context.of(node, 0)
    top = np.max(np.abs(factor), initial=0.0), np.max(np.abs(offset), initial=0.0)
    result = Bounds(-x.magnitude * top[0] - top[1], x.magnitude * top[0] + top[1], False, x.assumed)
    return _nominal(result, [x], context)


def _one_hot(node: ir.Node, context: Context) -> Bounds:
    return context.of(node, 2)


def _range(node: ir.Node, context: Context) -> Bounds:
    start, limit, step = (context.of(node, i) for i in range(3))
    # Counting in whole steps is what Range is for: where nothing is known, its values are integers without bound.
    integral = all(b.integral or not math.isfinite(b.magnitude) for b in (start, limit, step))
    spread = hull([start, limit])
    return Bounds(spread.low, spread.high, integral or (start.integral and step.integral), spread.assumed)


def _zero_to_input(node: ir.Node, context: Context) -> Bounds:
    """Activations between a small negative number and their input: GELU, SiLU, Mish, ELU; SELU falls 1.76 times it."""
    x = context.of(node, 0)
    return Bounds(max(2 * min(x.low, 0.0), -2.0), _SELU_SCALE * max(x.high, 0.0), False, x.assumed)


def _leaky(node: ir.Node, context: Context) -> Bounds:
    x = context.of(node, 0)
    return Bounds(min(x.low, 0.0), max(x.high, 0.0), False, x.assumed)


_FLOOR: dict[str, Callable[[float], float]] = {"Floor": math.floor, "Ceil": math.ceil, "Round": round}


def _whole(node: ir.Node, context: Context) -> Bounds:
    function = _FLOOR[node.op_type]
    return context.of(node, 0).mapped(lambda x: float(function(x)) if math.isfinite(x) else x, integral=True)


def _mod(node: ir.Node, context: Context) -> Bounds:
    x, y = context.of(node, 0), context.of(node, 1)
    return Bounds(-y.magnitude if min(x.low, y.low) < 0 else 0.0, y.magnitude, x.integral and y.integral, y.assumed)


_MONOTONE: dict[str, Callable[[float], float]] = {
    "Relu": lambda x: max(x, 0.0),
    "Exp": _exp,
    "Log": _log,
    "Sqrt": lambda x: math.sqrt(max(x, 0.0)),
    "Softplus": _softplus,
    "Sinh": _sinh,
    "Asinh": lambda x: math.asinh(x) if math.isfinite(x) else x,
}

TRANSFER: dict[str, Transfer] = {
    **{
        op: _hull_of_inputs
        for op in ("Concat", "Max", "Min", "Mean", "ScatterElements", "Scatter", "SequenceConstruct")
    },
    **{op: _hull_of_inputs for op in ("ScatterND", "TensorScatter", "SequenceInsert")},
    **{
        op: _first
        for op in """Identity Reshape Transpose Squeeze Unsqueeze Flatten Slice Split Gather GatherElements GatherND
        Expand Tile MaxPool GlobalMaxPool SpaceToDepth DepthToSpace ReverseSequence Compress Trilu Dropout TopK
        ReduceMax ReduceMin ReduceMean AveragePool GlobalAveragePool SplitToSequence SequenceAt SequenceErase
        ConcatFromSequence Optional OptionalGetElement MaxUnpool Unique Cast CastLike Upsample Resize GridSample
        RoiAlign MaxRoiPool""".split()
    },
    **{op: _fixed(_UNIT) for op in ("Sigmoid", "HardSigmoid", "Softmax", "Bernoulli", "RandomUniform", "EyeLike")},
    **{op: _fixed(_SIGNED_UNIT) for op in ("Tanh", "Erf", "Sin", "Cos", "Softsign", "Sign", "LpNormalization")},
    **{op: _fixed(Bounds(-2.0, 2.0)) for op in ("Atan", "Asin", "RNN", "GRU")},
    **{op: _fixed(Bounds(-50.0, 50.0)) for op in ("RandomNormal", "RandomNormalLike")},
    **{op: _monotone(function) for op, function in _MONOTONE.items()},
    **{
        op: _zero_to_input
        for op in ("Gelu", "Swish", "Mish", "HardSwish", "Elu", "Celu", "Selu", "FastGelu", "QuickGelu")
    },
    **{op: _leaky for op in ("LeakyRelu", "PRelu", "ThresholdedRelu", "Shrink")},
    **{op: _whole for op in _FLOOR},
    **{op: _normalised for op in ("LayerNormalization", "RMSNormalization", "InstanceNormalization")},
    **{op: _normalised for op in ("MeanVarianceNormalization",)},
    "Neg": lambda node, context: context.of(node, 0).negated(),
    "Abs": lambda node, context: context.of(node, 0).absolute(),
    "Reciprocal": lambda node, context: context.of(node, 0).inverse(),
    "Pad": _padded,
    "CenterCropPad": lambda node, context: hull([context.of(node, 0), Bounds(0.0, 0.0)]),
    "Where": _where,
    "Clip": _clip,
    "Add": _add,
    "Sub": _sub,
    "Mul": _mul,
    "Div": _div,
    "Pow": _pow,
    "ReduceSum": _sum_over,
    "CumSum": _sum_over,
    "ReduceL1": _l1,
    "ReduceL2": _l2,
    "ReduceSumSquare": _sum_square,
    "LogSoftmax": _log_softmax,
    "BatchNormalization": _batch_normalization,
    "OneHot": _one_hot,
    "Range": _range,
    "Mod": _mod,
}
