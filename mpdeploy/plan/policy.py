"""Named policies: which operators stay FP32, and on what evidence others may."""

from dataclasses import dataclass
from enum import Enum

from mpdeploy.errors import UsageError

# The operators that torch.autocast runs in float32 (torch/csrc/autograd: the fp32 list of the CUDA back end), by
# the ONNX operators that they export to.  Its low-precision list is `Kind.HEAVY`; all else takes its widest input.
AUTOCAST_FP32 = frozenset(
    """
    Acos Asin Cosh Sinh Tan Exp Log Pow Reciprocal Sqrt Softplus CumSum CumProd
    ReduceSum ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp LpNormalization
    Softmax LogSoftmax LayerNormalization GroupNormalization InstanceNormalization RMSNormalization
    SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization GroupNorm SkipGroupNorm
    EmbedLayerNormalization MeanVarianceNormalization SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss
    """.split()
)


class PolicyName(Enum):
    """The policies by the name that flags use."""

    AUTOCAST = "autocast"
    SAFE = "safe"
    BALANCED = "balanced"
    FAST = "fast"


@dataclass(frozen=True)
class Policy:
    """How evidence becomes a decision.

    ``fp32_operators`` stay FP32; with ``unless_proved``, only where no proof or measurement shows that they fit.
    ``margin`` widens measured ranges.  ``nominal`` is the magnitude assumed of what is neither measured nor proved.
    ``hazards`` turns on the rules about ranges, underflow and sums.
    """

    name: PolicyName
    fp32_operators: frozenset[str]
    unless_proved: bool
    margin: float
    nominal: float
    hazards: bool


POLICIES = {
    PolicyName.AUTOCAST: Policy(PolicyName.AUTOCAST, AUTOCAST_FP32, False, 2.0, 512.0, True),
    PolicyName.SAFE: Policy(PolicyName.SAFE, AUTOCAST_FP32, True, 2.0, 512.0, True),
    PolicyName.BALANCED: Policy(PolicyName.BALANCED, frozenset({"ReduceProd", "CumProd"}), False, 2.0, 512.0, True),
    PolicyName.FAST: Policy(PolicyName.FAST, frozenset(), False, 1.0, 1.0, False),
}


def policy_named(name: str | None, *, with_data: bool) -> Policy:
    """Return the policy of that name; without one, ``balanced`` where there is data and ``safe`` where not."""
    if name is None:
        return POLICIES[PolicyName.BALANCED if with_data else PolicyName.SAFE]
    try:
        policy = POLICIES[PolicyName(name)]
    except ValueError as error:
        known = ", ".join(p.value for p in PolicyName)
        raise UsageError(f"there is no policy {name!r}", remedy=f"the policies are {known}") from error
    if policy.name is PolicyName.BALANCED and not with_data:
        raise UsageError("policy 'balanced' decides by measured ranges", remedy="give --data, or use --policy safe")
    return policy
