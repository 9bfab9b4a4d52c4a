"""Loss scaling as a pure function: an immutable state, and the state that follows from what a step saw.

FP16 gradients below the smallest subnormal vanish.  The loss is multiplied by a scale before the backward pass
and the gradients are divided by it afterwards, so that small ones survive.  A dynamic scale grows while the
gradients stay finite and backs off when they overflow (Micikevicius et al., "Mixed Precision Training", 2018).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mpdeploy.errors import UsageError


@dataclass(frozen=True)
class ScaleState:
    """Where the scale stands: ``scale``, finite steps since it last changed, non-finite steps in a row."""

    scale: float
    clean_steps: int = 0
    bad_streak: int = 0


@dataclass(frozen=True)
class LossScaling:
    """The rule by which the scale moves.

    After ``interval`` finite steps it is multiplied by ``growth``; after ``hysteresis`` non-finite steps in a
    row, and on each further one, by ``backoff``.  It stays within ``floor`` and ``ceiling``.  Raises
    ``UsageError`` for values that contradict each other.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    hysteresis: int = 1
    floor: float = 1.0
    ceiling: float = 2.0**32

    def __post_init__(self) -> None:
        if not 0 < self.floor <= self.initial <= self.ceiling < float("inf"):
            raise UsageError(
                f"the initial loss scale {self.initial:g} is not between the floor {self.floor:g} and the ceiling "
                f"{self.ceiling:g}",
                remedy="choose 0 < floor <= initial <= ceiling",
            )
        if not (1 <= self.growth < float("inf") and 0 < self.backoff <= 1):
            raise UsageError(
                f"loss scaling with growth {self.growth:g} and backoff {self.backoff:g} cannot work",
                remedy="choose growth >= 1 and 0 < backoff <= 1",
            )
        if self.interval < 1 or self.hysteresis < 1:
            raise UsageError(
                f"the growth interval {self.interval} and the hysteresis {self.hysteresis} count steps",
                remedy="choose whole numbers of at least 1",
            )

    def __str__(self) -> str:
        """Say in a few words how the scale moves."""
        return f"dynamic from {self.initial:g}" if self.moves else f"static at {self.initial:g}"

    @property
    def moves(self) -> bool:
        """Whether the scale can ever change."""
        return self.floor < self.ceiling and (self.growth, self.backoff) != (1, 1)

    @classmethod
    def static(cls, scale: float) -> "LossScaling":
        """Return the rule that keeps ``scale`` for ever."""
        return cls(initial=scale, growth=1.0, backoff=1.0, floor=scale, ceiling=scale)

    def start(self) -> ScaleState:
        """Return the state before the first step."""
        return ScaleState(self.initial)

    def taking_over(self, numbers: Sequence[float] | None) -> ScaleState:
        """Return the state from which to go on: saved numbers of perhaps another rule, None if there are none."""
        if numbers is None or not self.moves:
            return self.start()
        scale, clean_steps, bad_streak = numbers
        within = min(self.ceiling, max(self.floor, float(scale)))
        return ScaleState(within, min(int(clean_steps), self.interval - 1), int(bad_streak))

    def update(self, state: ScaleState, *, finite: bool) -> ScaleState:
        """Return the state after a step whose gradients were all finite, or not."""
        if not finite:
            streak = state.bad_streak + 1
            backed_off = max(self.floor, state.scale * self.backoff)
            return ScaleState(backed_off if streak >= self.hysteresis else state.scale, 0, streak)
        if state.clean_steps + 1 >= self.interval:
            return ScaleState(min(self.ceiling, state.scale * self.growth))
        return ScaleState(state.scale, state.clean_steps + 1)
