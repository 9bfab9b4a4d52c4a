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
_GRACE = 3.0  # seconds that a call gets to end after it was told to stop


class Attendant:
    """Makes calls in one thread of its own while the caller waits.

    ``where`` names the model in errors; a call may take ``seconds``, None: as long as it takes.
    """

    def __init__(self, where: str, seconds: float | None) -> None:
        self._where, self._seconds = where, require_seconds(seconds)
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[object, BaseException | None]] = queue.SimpleQueue()
        self._one_at_a_time = threading.Lock()
        self._thread: threading.Thread | None = None

    def call(self, work: Callable[[], Result], stop: Callable[[], None]) -> Result:
        """Return what ``work`` returns, or raise what it raises; ``stop`` makes it end early, if anything can.

        Raises ``ModelError`` if it takes too long.  A signal that ends the command ends the call, too.
        """
        with self._one_at_a_time:
            self._start()
            self._work.put(work)
            try:
                result, error = self._done.get(timeout=self._seconds)
            except queue.Empty:
                self._end(stop)
                raise ModelError(
                    f"one run took more than {self._seconds:g} seconds and was stopped",
                    where=self._where,
                    remedy="give it more with --timeout, or look in the model for a loop that does not end",
                ) from None
            except BaseException:
                self._end(stop)
                raise
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # what the one call put there

    def _end(self, stop: Callable[[], None]) -> None:
        """Stop the call.  The thread of one that does not end is left to itself; the next call gets another."""
        stop()
        try:
            self._done.get(timeout=_GRACE)
        except queue.Empty:
            assert self._thread is not None  # noqa: S101 - it has the call
            self._thread.name = _GIVEN_UP
            self._work, self._done, self._thread = queue.SimpleQueue(), queue.SimpleQueue(), None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=_attend, args=(self._work, self._done), daemon=True)
            self._thread.start()
            weakref.finalize(self, self._work.put, None)


def within(seconds: float | None, where: str, work: Callable[[], Result]) -> Result:
    """Return what ``work`` returns, which nothing can stop; ``ModelError`` if it takes more than ``seconds``."""
    return work() if seconds is None else Attendant(where, seconds).call(work, lambda: None)


def any_given_up() -> bool:
    """Tell whether a call that nothing could stop still goes on: then the process cannot end in an orderly way."""
    return any(thread.name == _GIVEN_UP for thread in threading.enumerate())


def _attend(
    work: "queue.SimpleQueue[Callable[[], object] | None]",
    done: "queue.SimpleQueue[tuple[object, BaseException | None]]",
) -> None:
    while (task := work.get()) is not None:
        try:
            done.put((task(), None))
        except BaseException as error:  # noqa: BLE001 - raised again where the caller waits
            done.put((None, error))
        del task
