"""Why a value has its format: stable codes, and the text that goes with each."""

from dataclasses import dataclass
from enum import Enum


class Code(Enum):
    """The reasons, by code.  Codes never change their meaning; a new reason gets a new code."""

    HEAVY = "MP001"
    HARMLESS = "MP002"
    MASK = "MP003"
    RANGE_MEASURED = "MP101"
    RANGE_BOUND = "MP102"
    CONSTANT_RANGE = "MP103"
    INNER_RANGE = "MP104"
    ATTRIBUTE = "MP105"
    RANGE_TRAINED = "MP106"
    CONSTANT_LOSS = "MP111"
    VANISHING = "MP112"
    RECIPROCAL = "MP113"
    EPSILON = "MP114"
    ACCUMULATION = "MP121"
    INTEGER = "MP201"
    INDEX = "MP202"
    COORDINATE = "MP203"
    ANGLE = "MP204"
    DECISION = "MP205"
    TYPE_RULE = "MP301"
    BUILDER = "MP303"
    POLICY = "MP501"
    USER = "MP601"
    PLAN = "MP602"
    CHEAPEST = "MP701"
    MEASURED_DRIFT = "MP801"
    SEARCHED_LOW = "MP811"
    SEARCHED_FP32 = "MP812"

    @property
    def title(self) -> str:
        """What the code means, in a few words."""
        return _TITLES[self]


_TITLES = {
    Code.HEAVY: "arithmetic that pays in low precision",
    Code.HARMLESS: "nothing speaks against low precision",
    Code.MASK: "masked scores, saturated before the softmax",
    Code.RANGE_MEASURED: "range: measured on data",
    Code.RANGE_TRAINED: "range: measured in training",
    Code.RANGE_BOUND: "range: by its bounds",
    Code.CONSTANT_RANGE: "range: a stored number",
    Code.INNER_RANGE: "range: inside the operator",
    Code.ATTRIBUTE: "an attribute does not fit",
    Code.CONSTANT_LOSS: "a stored tensor loses too much",
    Code.VANISHING: "underflow: the whole tensor is tiny",
    Code.RECIPROCAL: "underflow: small numbers decide",
    Code.EPSILON: "underflow: an epsilon vanishes",
    Code.ACCUMULATION: "too many terms in one sum",
    Code.INTEGER: "a float that carries integers",
    Code.INDEX: "becomes an index, a size or a shape",
    Code.COORDINATE: "becomes a coordinate",
    Code.ANGLE: "becomes a large angle",
    Code.DECISION: "becomes a decision",
    Code.TYPE_RULE: "type rules of the operator",
    Code.BUILDER: "no engine builder takes it",
    Code.POLICY: "on the policy's FP32 list",
    Code.USER: "asked for by the user",
    Code.PLAN: "set in the plan",
    Code.CHEAPEST: "fewest bytes cast",
    Code.MEASURED_DRIFT: "drift: measured under real rounding",
    Code.SEARCHED_LOW: "searched: low, and the budget holds",
    Code.SEARCHED_FP32: "searched: low, it breaks the budget",
}

# What a measurement on the model's own outputs may overrule.  The others are no judgements: a type rule, a number
# beyond the range, a value whose every digit counts, the user's word.
SOFT = frozenset(
    {
        Code.RANGE_BOUND,
        Code.CONSTANT_LOSS,
        Code.VANISHING,
        Code.RECIPROCAL,
        Code.EPSILON,
        Code.ACCUMULATION,
        Code.POLICY,
        Code.MEASURED_DRIFT,
    }
)


# The reasons for the low format; all others lead to FP32, but for the user's own choice in the plan.
LOW_CODES = frozenset({Code.HEAVY, Code.HARMLESS, Code.MASK, Code.SEARCHED_LOW})


@dataclass(frozen=True)
class Reason:
    """A code and its evidence in words; ``limit`` names the runtime whose limit it is, if it is one's."""

    code: Code
    text: str
    limit: str = ""

    def __str__(self) -> str:
        return (
            f"{self.code.value} {self.code.title}: {self.text}" if self.text else f"{self.code.value} {self.code.title}"
        )
