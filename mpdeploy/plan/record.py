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
    ``limit`` names the runtime whose limit it is (``rtx``), empty where ONNX or the numbers decide.
    """

    node: str
    op: str
    values: tuple[str, ...]
    format: Format
    code: str
    reason: str
    saturate: bool = False
    limit: str = ""


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
class Trial:
    """What a plan came to on the data that it was made with, under true rounding, held to the format's default budget.

    ``text`` says it in words, ``budget`` what was allowed.  ``used`` is the largest share of an allowance that was used
    (over 1 breaks it; None if it is not finite), ``drift`` the largest norm-relative error of an output (None if it
    is not finite), ``feed`` the feed with the largest error.  ``feeds`` were judged, with ``samples`` in them, of
    ``given`` (None if their number was not known).  ``plans`` were tried.  ``cause`` says in words
    what no choice of formats mends: a model that draws random numbers, or one that its rounded weights alone, in FP32
    arithmetic, drive as far.
    """

    within: bool
    text: str
    budget: str
    used: float | None
    drift: float | None
    feed: str
    feeds: int
    samples: int
    given: int | None
    plans: int = 1
    cause: str = ""


@dataclass(frozen=True)
class PrecisionPlan:
    """Which value is computed in which format, and why; with the policy and the data that led to it.

    ``model`` is the SHA-256 of the graph (without its weights) that the plan was made for, ``opset`` the version
    that the converted model needs.  ``low_io``: inputs and outputs take the low format, too.  ``target`` is what
    the model is for: whose limits counted.  ``trial`` is what came of
    the plan on its data; a plan that was applied has none, since a measurement belongs to the run that made it.
    """

    precision: Format
    policy: str
    model: str
    opset: int
    decisions: tuple[Decision, ...]
    weights: tuple[WeightLoss, ...] = ()
    data: DataSource | None = None
    low_io: bool = False
    target: str = "any"
    keep: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    trial: Trial | None = None
    schema: str = "mpdeploy.plan/1"

    @property
    def low_count(self) -> int:
        """How many decisions chose the low format."""
        return sum(d.format is not Format.FP32 for d in self.decisions)
