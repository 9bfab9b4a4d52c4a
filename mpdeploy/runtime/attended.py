"""Calls that may never end: made in a thread of their own, so that the caller can be interrupted, or lose patience."""

import queue
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from mpdeploy.errors import ModelError
from mpdeploy.graph.patience import require_seconds

Result = TypeVar("Result")

ENDLESS = "Loop"  # the only operator whose end no size bounds
_GIVEN_UP = "mpdeploy: a call that was given up"
_LONGEST = 1e9  # seconds; more than threads can wait for, on some systems, would be a fault
_GRACE = 3.0  # seconds that a call gets to end after it was told to stop

_Answers = queue.SimpleQueue[tuple[object, BaseException | None]]
_Tasks = queue.SimpleQueue[tuple[Callable[[], object], _Answers] | None]


class Attendant:
    """Makes calls in one thread of its own while the caller waits.

    ``where`` names the model in errors; a call may take ``seconds``, None: as long as it takes.
    """

    def __init__(self, where: str, seconds: float | None) -> None:
        self._where, self._seconds = where, require_seconds(seconds)
        self._work: _Tasks = queue.SimpleQueue()
        self._one_at_a_time = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, work: Callable[[], Result], stop: Callable[[], None]) -> Result:
        """Return what ``work`` returns, or raise what it raises; ``stop`` makes it end early, if anything can.

        Raises ``ModelError`` if it takes too long.  A signal that ends the command ends the call, too.
        """
        with self._one_at_a_time:
            done: _Answers = queue.SimpleQueue()
            try:
                self._start()
                self._work.put((work, done))
                result, error = done.get(timeout=self._seconds and min(self._seconds, _LONGEST))
            except queue.Empty:
                self._end(stop, done)
                raise ModelError(
                    f"one run took more than {self._seconds:g} seconds and was stopped",
                    where=self._where,
                    remedy="give it more with --timeout, or look in the model for a loop that does not end",
                ) from None
            except BaseException:
                self._end(stop, done)
                raise
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # what the one call put there

    def _end(self, stop: Callable[[], None], done: "_Answers") -> None:
        """Stop the call.  The thread of one that does not end is left to itself; the next call gets another."""
        stop()
        try:
            done.get(timeout=_GRACE)
        except queue.Empty:
            self._give_up()
        except BaseException:  # a second signal: nobody waits for it any more
            self._give_up()
            raise

    def _give_up(self) -> None:
        if self._thread is not None:
            self._thread.name = _GIVEN_UP
            self._work.put(None)  # it ends after the call, should that ever end
            self._work, self._thread = queue.SimpleQueue(), None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=_attend, args=(self._work,), daemon=True)
            self._thread.start()
            weakref.finalize(self, self._work.put, None)


def within(seconds: float | None, where: str, work: Callable[[], Result]) -> Result:
    """Return what ``work`` returns, which nothing can stop; ``ModelError`` if it takes more than ``seconds``."""
    return work() if seconds is None else Attendant(where, seconds).call(work, lambda: None)


def any_given_up() -> bool:
    """Tell whether a call that nothing could stop still goes on: then the process cannot end in an orderly way."""
    return any(thread.name == _GIVEN_UP for thread in threading.enumerate())


def _attend(tasks: "_Tasks") -> None:
    while (given := tasks.get()) is not None:
        work, done = given
        try:
            done.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again where the caller waits
            done.put((None, error))
        del given, work, done
