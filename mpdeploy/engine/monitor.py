"""Progress from the builder's own monitor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BuildStep:
    """How far a build is: ``done`` of ``total`` steps of the outermost phase, and the innermost phase's name."""

    done: int
    total: int
    phase: str


Progress = Callable[[BuildStep], None]


@dataclass
class _Phase:
    name: str
    total: int
    done: int = 0


class PhaseTracker:
    """Turns the nested phases that a builder reports into ``BuildStep``s.

    The builder calls from inside C++, where an exception must not pass.  The first one is kept in ``failure``,
    and the builder is asked to stop; who called the builder raises it.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._phases: list[_Phase] = []
        self.failure: BaseException | None = None

    def start(self, name: str, total: int) -> None:
        """Open the phase ``name`` of ``total`` steps."""
        self._phases.append(_Phase(name, total))
        self._tell()

    def step(self, name: str, index: int) -> bool:
        """Count step ``index`` (from 0) of the phase as done; return whether the build shall go on."""
        for phase in self._phases:
            if phase.name == name:
                phase.done = index + 1
        self._tell()
        return self.failure is None

    def finish(self, name: str) -> None:
        """Close the phase ``name``."""
        for phase in self._phases:
            if phase.name == name:
                phase.done = phase.total
        self._tell()
        self._phases = [phase for phase in self._phases if phase.name != name]

    def _tell(self) -> None:
        if self.failure is not None or self._progress is None or not self._phases:
            return
        outer = self._phases[0]
        try:
            self._progress(BuildStep(outer.done, outer.total, self._phases[-1].name))
        except BaseException as error:  # noqa: BLE001 - raised again after the build
            self.failure = error


def monitor_for(module: Any, tracker: PhaseTracker) -> Any:
    """Return a progress monitor of the given TensorRT module that feeds ``tracker``."""

    class Monitor(module.IProgressMonitor):  # type: ignore[misc]  # a class of whichever TensorRT is installed
        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)

        def phase_start(self, name: str, parent: str | None, steps: int) -> None:
            tracker.start(name, steps)

        def phase_finish(self, name: str) -> None:
            tracker.finish(name)

        def step_complete(self, name: str, step: int) -> bool:
            return tracker.step(name, step)

    return Monitor()
