"""The plan as a document: ``plan.json``, which a person may read, edit, diff and apply again."""

from dataclasses import dataclass, field

from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.rounding import Loss


@dataclass(frozen=True)
class Decision:
    """One format, chosen for operands that must share it.

    ``node`` names the operator (with ``:operands`` where only some of its operands are meant), ``values`` the
    float values that it computes in this format.  ``code`` is stable, ``reason`` its evidence in words.
    ``saturate``: the input is first limited to the format's lowest number, so that a mask of -inf leaves no NaN.
    """

    node: str
    op: str
    values: tuple[str, ...]
    format: Format
    code: str
    reason: str
    saturate: bool = False


@dataclass(frozen=True)
class WeightLoss:
    """A stored tensor that lost more than ordinary rounding, and the nodes that read it."""

    name: str
    consumers: tuple[str, ...]
    loss: Loss


@dataclass(frozen=True)
class DataSource:
    """The data behind measured ranges; ``samples`` is 0 where they come from training."""

    name: str
    samples: int


@dataclass(frozen=True)
class PrecisionPlan:
    """Which value is computed in which format, and why; with the policy and the data that led to it.

    ``model`` is the SHA-256 of the graph (without its weights) that the plan was made for, ``opset`` the version
    that the converted model needs.  ``low_io``: inputs and outputs take the low format, too.
    """

    precision: Format
    policy: str
    model: str
    opset: int
    decisions: tuple[Decision, ...]
    weights: tuple[WeightLoss, ...] = ()
    data: DataSource | None = None
    low_io: bool = False
    keep: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    schema: str = "mpdeploy.plan/1"

    @property
    def low_count(self) -> int:
        """How many decisions chose the low format."""
        return sum(d.format is not Format.FP32 for d in self.decisions)
