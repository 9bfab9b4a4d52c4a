"""What if matrix operands were rounded to TF32 or FP8?  The sums stay as they are."""

import onnx_ir as ir

from mpdeploy.errors import UsageError
from mpdeploy.graph.scope import all_graphs
from mpdeploy.graph.types import element_type
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.nodes import Nodes

OPSET = 19  # the first with casts to the 8-bit formats
FORMATS = (Format.TF32, Format.FP8E4M3, Format.FP8E5M2)

_OPERATORS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})
_EIGHT_BITS = {Format.FP8E4M3: ir.DataType.FLOAT8E4M3FN, Format.FP8E5M2: ir.DataType.FLOAT8E5M2}


def round_operands(twin: ir.Model, target: Format) -> int:
    """Round both operands of every float32 matrix product and convolution to ``target``, in place.

    TF32 keeps 11 bits, ties away from the even neighbour at times, as hardware does.  The 8-bit formats are scaled
    so that each tensor's largest magnitude is the format's: what FP8 recipes call current scaling.  Returns how many
    operators were changed.  Raises ``UsageError`` for any other format.
    """
    if target not in FORMATS:
        raise UsageError(f"operands cannot be tried in {target.value}", remedy="use tf32, fp8e4m3 or fp8e5m2")
    changed = 0
    for graph in list(all_graphs(twin)):
        rounded: dict[ir.Value, ir.Value] = {}
        for node in list(graph):
            if node.domain or node.op_type not in _OPERATORS:
                continue
            operands = [v for v in node.inputs[:2] if v is not None and element_type(v) in (None, ir.DataType.FLOAT)]
            if len(operands) < 2:
                continue
            changed += 1
            nodes = Nodes(graph, node)
            for index, value in enumerate(operands):
                if value not in rounded:
                    rounded[value] = _tf32(value, nodes) if target is Format.TF32 else _fp8(value, target, nodes)
                node.replace_input_with(index, rounded[value])
    return changed


def _tf32(value: ir.Value, n: Nodes) -> ir.Value:
    """Veltkamp's splitting (T. J. Dekker, 1971): the upper 11 of float32's 24 bits, rounded to nearest."""
    dropped = Format.FP32.facts.precision - Format.TF32.facts.precision
    product = n.op("Mul", value, n.number(2.0**dropped + 1))
    upper = n.op("Add", product, n.op("Sub", value, product))
    # Where the product leaves float32, the value, infinite or nearly so, stays.
    large = n.op("Greater", n.op("Abs", value), n.number(2.0 ** (Format.FP32.facts.max_exponent - dropped - 1)))
    return n.op("Where", large, value, upper)


def _fp8(value: ir.Value, target: Format, n: Nodes) -> ir.Value:
    largest = n.op("ReduceMax", n.op("Abs", value), keepdims=0)
    smallest = n.number(2.0**-100)  # an all-zero tensor stays so, whatever its scale
    scale = n.op("Div", n.number(target.max), n.op("Max", largest, smallest))
    scaled = n.op("Mul", value, scale)
    narrow = n.op("Cast", scaled, to=int(_EIGHT_BITS[target]))
    return n.op("Div", n.op("Cast", narrow, to=int(ir.DataType.FLOAT)), scale)
