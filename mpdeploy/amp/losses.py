"""The loss scales of an engine: one state for each named loss, moved by what a step saw."""

from collections.abc import Collection, Mapping, Sequence

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

    @property
    def several(self) -> bool:
        """Whether there is more than one loss."""
        return len(self._states) > 1

    @property
    def first(self) -> ScaleState:
        """The state of the first loss."""
        return next(iter(self._states.values()))

    def named(self, name: str | None) -> tuple[str, float]:
        """Return the name of a loss (None: the first) and its scale; raise ``UsageError`` if there is none."""
        name = next(iter(self._states)) if name is None else name
        if name not in self._states:
            raise UsageError(f"there is no loss `{name}`", remedy=f"the engine's losses are {list(self._states)}")
        return name, self._states[name].scale

    def end_step(self, took_part: Collection[str], overflowed: Collection[str]) -> tuple[LossOutcome, ...]:
        """Move the scales of the losses that took part; ``overflowed`` are those whose gradients were not finite."""
        outcomes = []
        for name in [name for name in self._states if name in took_part]:
            before, finite = self._states[name], name not in overflowed
            if self._rule:
                self._states[name] = self._rule.update(before, finite=finite)
            outcomes.append(LossOutcome(name, before.scale, self._states[name].scale, finite))
        return tuple(outcomes)

    @property
    def exhausted(self) -> bool:
        """Whether some dynamic scale stands at its floor after non-finite steps: backing off cannot help any more."""
        rule = self._rule
        if rule is None or not rule.moves:
            return False
        return any(s.scale <= rule.floor and s.bad_streak > rule.hysteresis for s in self._states.values())

    def state_dict(self) -> dict[str, list[float] | None]:
        """Return the states as plain numbers by the names of the losses, None where losses are not scaled."""
        return {
            name: [s.scale, s.clean_steps, s.bad_streak] if self._rule else None for name, s in self._states.items()
        }

    def load_state_dict(self, saved: Mapping[str, Sequence[float] | None]) -> None:
        """Go on from saved states, within what this engine's rule allows; where none was kept, the rule's start holds.

        Raises ``UsageError`` if they belong to other losses.
        """
        if not isinstance(saved, Mapping) or saved.keys() != self._states.keys():
            raise UsageError(
                f"the saved state has no loss scale for {list(self._states)}",
                remedy="resume from a state that this engine's state_dict() returned",
            )
        if self._rule:
            for name, numbers in saved.items():
                self._states[name] = self._rule.taking_over(numbers)
