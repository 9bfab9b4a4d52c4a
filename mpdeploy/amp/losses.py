"""The loss scales of an engine: one state for each named loss, moved by what a step saw."""

import math
from collections.abc import Sequence

from mpdeploy.amp.result import LossOutcome
from mpdeploy.amp.scaling import LossScaling, ScaleState
from mpdeploy.errors import UsageError

_NO_SCALE = ScaleState(1.0)


class LossScales:
    """Scales by the names of the losses, and which of the losses took part in the step that is under way."""

    def __init__(self, names: Sequence[str], rule: LossScaling | None) -> None:
        if not names or len(set(names)) != len(names):
            raise UsageError(f"the losses are named {list(names)}", remedy="name at least one, all differently")
        self._rule = rule
        self._states = {name: rule.start() if rule else _NO_SCALE for name in names}
        self._finite: dict[str, bool] = {}

    @property
    def several(self) -> bool:
        """Whether there is more than one loss."""
        return len(self._states) > 1

    @property
    def first(self) -> ScaleState:
        """The state of the first loss."""
        return next(iter(self._states.values()))

    def take_part(self, name: str | None) -> float:
        """Note that the loss takes part in this step (None: the first) and return its scale."""
        name = next(iter(self._states)) if name is None else name
        if name not in self._states:
            raise UsageError(f"there is no loss `{name}`", remedy=f"the engine's losses are {list(self._states)}")
        self._finite.setdefault(name, True)
        return self._states[name].scale

    def saw(self, name: str | None, norm: float) -> None:
        """Note the norm of the gradients of one loss alone."""
        name = next(iter(self._states)) if name is None else name
        self._finite[name] &= math.isfinite(norm)

    def end_step(self, *, finite: bool) -> tuple[LossOutcome, ...]:
        """Move the scales of the losses that took part; ``finite`` tells whether all gradients together were."""
        if not finite and all(self._finite.values()):
            # Only together they overflowed, or there is just one: then all are to blame.
            self._finite = dict.fromkeys(self._finite, False)
        outcomes = []
        for name in [name for name in self._states if name in self._finite]:
            before, was_finite = self._states[name], self._finite[name]
            if self._rule:
                self._states[name] = self._rule.update(before, finite=was_finite)
            outcomes.append(LossOutcome(name, before.scale, self._states[name].scale, was_finite))
        self._finite = {}
        return tuple(outcomes)

    @property
    def exhausted(self) -> bool:
        """Whether some dynamic scale stands at its floor after non-finite steps: backing off cannot help any more."""
        rule = self._rule
        if rule is None or not rule.moves:
            return False
        return any(s.scale <= rule.floor and s.bad_streak > rule.hysteresis for s in self._states.values())

    def state_dict(self) -> dict[str, list[float]]:
        """Return the states as plain numbers by the names of the losses."""
        return {name: [s.scale, s.clean_steps, s.bad_streak] for name, s in self._states.items()}

    def load_state_dict(self, saved: dict[str, list[float]]) -> None:
        """Go on from saved states; raise ``UsageError`` if they belong to other losses."""
        if not isinstance(saved, dict) or saved.keys() != self._states.keys():
            raise UsageError(
                f"the saved state has no loss scale for {list(self._states)}",
                remedy="resume from a state that this engine's state_dict() returned",
            )
        self._states = {name: ScaleState(float(s), int(c), int(b)) for name, (s, c, b) in saved.items()}
