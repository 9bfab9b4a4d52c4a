"""Training as the user sees it: progress with what matters, and Ctrl-C that saves before it stops."""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from mpdeploy.cli.outcome import TerminatedError
from mpdeploy.cli.progress import Report, meter, note

if TYPE_CHECKING:
    from mpdeploy.train.loop import Step, Training
    from mpdeploy.train.world import World

_SMOOTHING = 0.05  # weight of the newest step in the pace shown


class Stop:
    """Whether the user asked to stop, and the signal that said so."""

    def __init__(self) -> None:
        self.requested = False
        self.signal = signal.SIGINT

    def fault(self) -> KeyboardInterrupt:
        """Return what to raise."""
        return TerminatedError() if self.signal == signal.SIGTERM else KeyboardInterrupt()


@contextlib.contextmanager
def on_interrupt() -> Iterator[Stop]:
    """Turn the first Ctrl-C (or SIGTERM) into a request; a second one stops at once, as usual."""
    stop = Stop()

    def request(number: int, frame: FrameType | None) -> None:
        stop.requested, stop.signal = True, signal.Signals(number)
        for kind, handler in before.items():
            signal.signal(kind, handler)

    before = {kind: signal.signal(kind, request) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def train_to_the_end(training: "Training", what: str, world: "World", goes_on: str) -> None:
    """Train while showing progress; ``goes_on`` says how a training that was stopped goes on.

    Raises ``KeyboardInterrupt`` after a step and its saved state if the user asked to stop.
    """
    pace = Pace(training.steps_left)
    with on_interrupt() as stop, meter(what) if world.leads else _silence() as report:
        parts = training.parts
        for step in training.steps():
            if world.leads and step.parts > parts:
                note(f"memory ran out at step {step.step + 1}: batches go through the model in {step.parts} parts now")
            parts = step.parts
            if world.leads and step.result.skipped:
                before, after = step.result.scale_before, step.result.scale_after
                scale = f"; loss scale {before:g} → {after:g}" if training.scaled else ""
                note(f"step {step.step} skipped: {step.result.skipped.value}{scale}")
            report(*pace.after(step, training.skipped))
            if world.mean(float(stop.requested)) > 0:  # any process may have been asked
                training.save()
                if world.leads:
                    note(f"stopped after step {step.step}; {goes_on}")
                raise stop.fault()
    if world.leads and training.stopped:
        note("the recipe has stopped the training")
    if world.leads and training.streak > 1:
        note(f"warning: the last {training.streak} steps were skipped: nothing finite came any more")


class Pace:
    """How fast a training goes, as a share and a few words."""

    def __init__(self, steps: int) -> None:
        self._steps, self._done = steps, 0
        self._last = time.monotonic()
        self._seconds: float | None = None

    def after(self, step: "Step", skipped: int) -> tuple[float, str]:
        """Return the share done and the words after a step."""
        now = time.monotonic()
        took, self._last = now - self._last, now
        self._seconds = took if self._seconds is None else self._seconds + _SMOOTHING * (took - self._seconds)
        self._done += 1
        words = [f"loss {step.loss:.4g}", f"{1 / max(self._seconds, 1e-9):.3g} steps/s"]
        if step.result.scale_after != 1:
            words.append(f"scale {step.result.scale_after:g}")
        words.append(f"{skipped} skipped")
        if not sys.stderr.isatty():  # the bar on a terminal has a clock of its own
            left = int((self._steps - self._done) * self._seconds)
            words.append(f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")
        return self._done / max(self._steps, 1), ", ".join(words)


@contextlib.contextmanager
def _silence() -> Iterator[Report]:
    yield lambda share, detail: None
