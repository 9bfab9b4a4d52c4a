"""What a search did, as a record."""

from dataclasses import dataclass

from mpdeploy.conversion.record import ConversionResult
from mpdeploy.numerics.budget import Budget
from mpdeploy.runtime.runner import Execution
from mpdeploy.verification.verdict import Verdict


@dataclass(frozen=True)
class Step:
    """One plan that was tried: what was changed, in words, and what came of it.

    ``error`` is the largest norm-relative error of an output, None if it is not finite; ``low`` counts the decisions
    that are low, ``low_flops`` is the share of FLOPs as in ``ConversionResult``, ``bytes_low`` the share of the bytes
    of all planned values that are in the low format.
    """

    what: str
    passed: bool
    headline: str
    error: float | None
    low: int
    low_flops: float | None
    bytes_low: float


@dataclass(frozen=True)
class SearchResult:
    """The model that a search wrote, and how it came to it.

    ``steps`` are the plans tried, in order: the first follows the policy's rules, ``found`` is the one that was
    written.  ``verdict`` is that
    of the model written, on all of the ``samples`` in ``data``; ``run`` says how it was obtained.  ``kept`` are the
    nodes that the search itself keeps in FP32, ``freed`` those that rules would have kept.  ``complete`` is false if
    the trials ran out before everything had been asked.
    """

    conversion: ConversionResult
    budget: Budget
    verdict: Verdict
    run: Execution
    steps: tuple[Step, ...]
    found: Step
    kept: tuple[str, ...]
    freed: tuple[str, ...]
    complete: bool
    data: str
    samples: int
    seconds: float
    schema: str = "mpdeploy.search/1"

    @property
    def passed(self) -> bool:
        """Whether the model written is within the budget; the result itself is true if so."""
        return self.verdict.passed

    def __bool__(self) -> bool:
        return self.passed
