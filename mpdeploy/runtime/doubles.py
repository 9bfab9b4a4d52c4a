"""From float64 to a low format with one rounding; ONNX Runtime's Cast goes through float32 and rounds twice."""

import onnx_ir as ir

from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.nodes import Nodes

_DOUBLE_PRECISION = 53
_SAFE = 2.0**900  # beyond, Veltkamp's product would leave float64; such numbers become infinite anyway


def rounded_double(value: ir.Value, target: Format, n: Nodes) -> ir.Value:
    """Return the float64 value rounded to nearest even to a number of ``target``; what is too large stays so.

    In the normal range by Veltkamp's splitting (T. J. Dekker, 1971), below it by adding a number so large that
    its last place is the smallest subnormal.
    """
    facts = target.facts
    product = n.op("Mul", value, n.double(2.0 ** (_DOUBLE_PRECISION - facts.precision) + 1))
    normal = n.op("Add", product, n.op("Sub", value, product))
    lift = n.double(1.5 * 2.0 ** (_DOUBLE_PRECISION - 1) * target.smallest_subnormal)
    small = n.op("Sub", n.op("Add", value, lift), lift)
    magnitude = n.op("Abs", value)
    within = n.op("Where", n.op("Less", magnitude, n.double(target.smallest_normal)), small, normal)
    return n.op("Where", n.op("Greater", magnitude, n.double(_SAFE)), value, within)
