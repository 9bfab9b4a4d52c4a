"""The drift report: what was compared on which data, what ran, what came out, the verdict."""

from dataclasses import dataclass

from mpdeploy.numerics.budget import Budget
from mpdeploy.numerics.drift import OutputDrift
from mpdeploy.numerics.scores import Score
from mpdeploy.runtime.facts import ModelFacts
from mpdeploy.runtime.runner import Execution
from mpdeploy.verification.blame import Blame
from mpdeploy.verification.noise import Noise
from mpdeploy.verification.verdict import Verdict

REPORT_SCHEMA = "mpdeploy.report/1"  # of the documents that hold drift reports


@dataclass(frozen=True)
class DataFacts:
    """The data of a comparison: where from, how many feeds, how many samples in them, the SHA-256 of its files."""

    source: str
    feeds: int
    samples: int
    sha256: str


@dataclass(frozen=True)
class DriftReport:
    """The result of ``verify``, readable a year later.

    ``reference_run`` and ``candidate_run`` say how the numbers were obtained; ``notes`` what else a reader should
    know.  ``created`` is a UTC time in ISO 8601, ``seconds`` what the comparison took.  ``noise`` is the
    reference's own, ``blame`` the drift inside the models, ``scores`` are those of tasks and of the user's metrics;
    empty or None if nobody asked.
    """

    reference: ModelFacts
    candidate: ModelFacts
    data: DataFacts
    reference_run: Execution
    candidate_run: Execution
    outputs: tuple[OutputDrift, ...]
    budget: Budget
    verdict: Verdict
    notes: tuple[str, ...]
    created: str
    seconds: float
    tool: str
    noise: tuple[Noise, ...] = ()
    blame: Blame | None = None
    scores: tuple[Score, ...] = ()
    schema: str = "mpdeploy.drift/1"

    @property
    def passed(self) -> bool:
        """Whether the candidate is within its budget; the report itself is true if so."""
        return self.verdict.passed

    def __bool__(self) -> bool:
        return self.passed
