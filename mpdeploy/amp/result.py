"""What a step did."""

from dataclasses import dataclass
from enum import Enum


class Skip(Enum):
    """Why a step was not applied."""

    NONFINITE_GRADIENT = "a gradient is infinite or NaN"


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did.

    ``skipped`` is None for an applied step.  ``scale_before`` is the loss scale that the gradients were computed
    with, ``scale_after`` that of the next step; both are 1 where the level has none.  ``grad_norm`` is the
    2-norm over all gradients, unscaled and before clipping, None where it is not finite.  ``clipped`` tells
    whether clipping changed the gradients.  ``nonfinite`` names the parameters whose gradient was not finite.
    """

    skipped: Skip | None
    scale_before: float
    scale_after: float
    grad_norm: float | None
    clipped: bool = False
    nonfinite: tuple[str, ...] = ()

    @property
    def applied(self) -> bool:
        """Whether parameters and optimizer state moved."""
        return self.skipped is None
