"""Facts about operators that planning needs: what they compute, and which operands carry what.

Only facts stand here, each with its reason; which of them matter is for a policy to say.
"""

from enum import Enum

import onnx_ir as ir

from mpdeploy.numerics.formats import Format

STANDARD_DOMAINS = frozenset({"", "ai.onnx"})


class Kind(Enum):
    """What an operator does to the numbers that pass through it."""

    HEAVY = "matrix products and recurrences: the arithmetic that low precision makes fast"
    MOVE = "moves, selects or repeats elements: exact in any format"
    POINTWISE = "one result per element"
    SUM = "adds many elements in a plain loop"
    NORM = "normalises by a mean and a variance, fused"
    SOFTMAX = "exponentials over their sum, fused"
    CONTROL = "holds subgraphs"
    CONSTANT = "a stored tensor"
    OTHER = "anything else"


_HEAVY = """
    MatMul Gemm Conv ConvTranspose DeformConv Einsum LSTM GRU RNN Attention
    FusedMatMul TransposeMatMul FusedGemm FusedConv NhwcConv MultiHeadAttention GroupQueryAttention PackedAttention
    PackedMultiHeadAttention DecoderMaskedMultiHeadAttention QAttention LongformerAttention SparseAttention
    GemmFastGelu MoE
"""
_MOVE = """
    Identity Reshape Transpose Squeeze Unsqueeze Flatten Slice Split Concat Gather GatherElements GatherND Expand Tile
    Pad Scatter ScatterElements ScatterND Where MaxPool GlobalMaxPool Max Min Relu Abs Neg SpaceToDepth DepthToSpace
    ReverseSequence Compress Trilu Dropout TopK ReduceMax ReduceMin CenterCropPad SplitToSequence SequenceAt
    SequenceConstruct SequenceInsert SequenceErase SequenceEmpty ConcatFromSequence Optional OptionalGetElement
    MaxUnpool Unique OneHot Clip Sign Col2Im EyeLike Upsample TensorScatter
"""
_SUM = """
    ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp ReduceProd CumSum CumProd
    GlobalAveragePool AveragePool GlobalLpPool LpPool LpNormalization MeanVarianceNormalization
"""
_NORM = """
    LayerNormalization InstanceNormalization GroupNormalization RMSNormalization SimplifiedLayerNormalization
    SkipLayerNormalization SkipSimplifiedLayerNormalization EmbedLayerNormalization GroupNorm SkipGroupNorm LRN
"""
_POINTWISE = """
    Add Sub Mul Div Pow Sqrt Exp Log Erf Gelu FastGelu QuickGelu BiasGelu Tanh Sigmoid HardSigmoid HardSwish Swish Mish
    Softplus Softsign Elu Selu Celu ThresholdedRelu LeakyRelu PRelu Shrink Reciprocal Floor Ceil Round Mod Sin Cos Tan
    Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Sum Mean BatchNormalization Cast CastLike BiasAdd RotaryEmbedding
    Equal Greater GreaterOrEqual Less LessOrEqual IsNaN IsInf Not And Or Xor BitShift
"""
_KINDS = {
    Kind.HEAVY: _HEAVY,
    Kind.MOVE: _MOVE,
    Kind.SUM: _SUM,
    Kind.NORM: _NORM,
    Kind.SOFTMAX: "Softmax LogSoftmax BiasSoftmax",
    Kind.POINTWISE: _POINTWISE,
    Kind.CONTROL: "If Loop Scan SequenceMap",
    Kind.CONSTANT: "Constant",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_KNOWN_DOMAINS = STANDARD_DOMAINS | {"com.microsoft"}


def kind_of(node: ir.Node) -> Kind:
    """Return what the node's operator does; ``OTHER`` for operators that nobody here knows."""
    return _KIND_OF.get(node.op_type, Kind.OTHER) if node.domain in _KNOWN_DOMAINS else Kind.OTHER


def is_standard(node: ir.Node) -> bool:
    """Tell whether the node's operator is one of ONNX's own domain."""
    return node.domain in STANDARD_DOMAINS


# Operands that may have a format of their own although the schema, or a strongly typed parser, ties them to the
# main operands only by type variable.  All other float operands of a node share one format: TensorRT demands it
# even where ONNX does not (Pow, BatchNormalization).  Inputs by index; outputs as -1 - index.
_OUTPUT = -1
_SEPARATE: dict[str, dict[int, str]] = {
    "Cast": {_OUTPUT: "result"},
    "CastLike": {0: "input"},
    "EyeLike": {_OUTPUT: "result"},
    "RandomNormalLike": {_OUTPUT: "result"},
    "RandomUniformLike": {_OUTPUT: "result"},
    "Bernoulli": {_OUTPUT: "result"},
    "Dropout": {1: "ratio"},
    "Resize": {1: "roi", 2: "scales"},
    "Upsample": {1: "scales"},
    "OneHot": {0: "indices", 1: "depth"},
    "LayerNormalization": {_OUTPUT - 1: "statistics", _OUTPUT - 2: "statistics"},
    "SkipLayerNormalization": {_OUTPUT - 1: "statistics", _OUTPUT - 2: "statistics"},
}


def operand_set(node: ir.Node, index: int, *, output: bool) -> str:
    """Return the name of the set of operands that shares one format with this one: "" for the main set."""
    key = _OUTPUT - index if output else index
    if node.op_type == "Resize" and len(node.inputs) == 2 and not output:
        key = {0: 0, 1: 2}[index]  # opset 10: (X, scales)
    return _SEPARATE.get(node.op_type, {}).get(key, "") if is_standard(node) else ""


# Operands whose value is an index, a coordinate or a size, though their type is a float.
COORDINATE_OPERANDS: dict[str, frozenset[int]] = {
    "Resize": frozenset({1, 2}),
    "Upsample": frozenset({1}),
    "GridSample": frozenset({1}),
    "AffineGrid": frozenset({0}),
    "RoiAlign": frozenset({1}),
    "MaxRoiPool": frozenset({1}),
    "CropAndResize": frozenset({1}),
    "NonMaxSuppression": frozenset({0, 1, 3, 4}),
    "Range": frozenset({0, 1, 2}),
    "OneHot": frozenset({0, 1}),
}

# Operands whose small magnitudes decide the result: what vanishes there becomes an infinity or a wrong sign.
RECIPROCAL_OPERANDS: dict[str, frozenset[int]] = {
    "Div": frozenset({1}),
    "Reciprocal": frozenset({0}),
    "Log": frozenset({0}),
    "Mod": frozenset({1}),
}


# Operators that TensorRT for RTX 1.7 refuses in a format although ONNX allows it (found by building each of them).
_HALF = frozenset({"HannWindow", "HammingWindow", "BlackmanWindow", "Celu"})
BUILDER_LACKS: dict[Format, frozenset[str]] = {
    Format.FP16: _HALF,
    Format.BF16: _HALF | {"ConvTranspose", "HardSwish", "Mish", "GRU", "LpNormalization", "LpPool"},
}
_SEQUENCE_LENS = 4


def builder_refuses(node: ir.Node, low: Format) -> bool:
    """Tell whether TensorRT builds the node in FP32, but not in the low format."""
    if not is_standard(node):
        return False
    # Its importer masks what lies behind a sequence's end with float32 numbers.
    has_lengths = node.op_type in ("LSTM", "GRU", "RNN") and len(node.inputs) > _SEQUENCE_LENS
    return node.op_type in BUILDER_LACKS.get(low, ()) or (has_lengths and node.inputs[_SEQUENCE_LENS] is not None)
