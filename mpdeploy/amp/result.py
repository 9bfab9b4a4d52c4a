"""What a step did."""

from dataclasses import dataclass
from enum import Enum


class Skip(Enum):
    """Why a step was not applied."""

    NONFINITE_GRADIENT = "a gradient is infinite or NaN"


@dataclass(frozen=True)
class LossOutcome:
    """What a step meant for one loss: its scale before and after, and whether its gradients were finite."""

    name: str
    scale_before: float
    scale_after: float
    finite: bool


@dataclass(frozen=True)
class StepResult:
    """What one optimizer step did.

    ``skipped`` is None for an applied step.  ``losses`` tells of each loss that took part.  ``grad_norm`` is the
    2-norm over all gradients, unscaled and before clipping, None where it is not finite.  ``clipped`` tells whether
    clipping changed the gradients.  ``nonfinite`` names the parameters whose gradient was not finite.  ``streak``
    counts the skipped steps in a row, this one included.
    """

    skipped: Skip | None
    losses: tuple[LossOutcome, ...]
    grad_norm: float | None
    clipped: bool = False
    nonfinite: tuple[str, ...] = ()
    streak: int = 0

    def __str__(self) -> str:
        """Say in one line what happened."""
        scale = f", loss scale {self.scale_after:g}" if self.scale_after != 1 else ""
        if self.skipped:
            return f"skipped, {self.skipped.value}, {self.streak} in a row{scale}"
        return f"applied, gradient norm {self.grad_norm:.3g}{' clipped' if self.clipped else ''}{scale}"

    @property
    def applied(self) -> bool:
        """Whether parameters and optimizer state moved."""
        return self.skipped is None

    @property
    def scale_before(self) -> float:
        """The scale of the first loss that the gradients were computed with; 1 where the level has none."""
        return self.losses[0].scale_before

    @property
    def scale_after(self) -> float:
        """The scale of the first loss in the next step."""
        return self.losses[0].scale_after
