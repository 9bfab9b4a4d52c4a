"""What TensorRT says.  Its log lines are the only text of its errors, so they are kept, not printed.

The first logger of a process is the one that TensorRT uses for good, later ones are ignored: there is one
logger for each TensorRT module, and it hands the lines to whoever is capturing.
"""

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

# Without a driver each type error is followed by this line; it is about the missing driver, not the model.
_STRAY = re.compile(r"^\s*\[\w+\.cpp::catchCudaError::\d+\].*cudaError 35\b")
# The parser tells whoever feeds the engine to mind an input's type; we hold every array to it.
_NEEDLESS = re.compile(r"Make sure input .* has Int64 binding")
_SOURCE_PLACE = re.compile(r"\.?\s*\bIn [\w:~<>]+ at /_src/[^\s()]+(:\d+)?")
_PLACE_TAG = re.compile(r"\[\w+\.(cpp|h):\d+: \w+\]\s*|\b\w+\.cpp:\d+:\s*")
_WRAPPER = re.compile(r"^(?:[\w:]+: )?Error Code \d+: [\w ]+ \((?P<text>.*)\)$", re.DOTALL)


class Severity(IntEnum):
    """TensorRT's severities, worst first."""

    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3
    VERBOSE = 4


@dataclass(frozen=True)
class Message:
    """One log line, cleaned of source places."""

    severity: Severity
    text: str


class Inbox:
    """Receives the lines of all threads while it is open."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def add(self, message: Message) -> None:
        """Keep one message."""
        self._messages.append(message)

    def errors(self) -> tuple[str, ...]:
        """Return the texts of errors, oldest first, without repetitions."""
        return self._texts(Severity.INTERNAL_ERROR, Severity.ERROR)

    def warnings(self) -> tuple[str, ...]:
        """Return the texts of warnings, oldest first, without repetitions."""
        return self._texts(Severity.WARNING)

    def _texts(self, *severities: Severity) -> tuple[str, ...]:
        return tuple(dict.fromkeys(m.text for m in self._messages if m.severity in severities))


class _Switchboard:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inboxes: list[Inbox] = []

    def deliver(self, severity: int, text: str) -> None:
        if severity >= Severity.VERBOSE or not (cleaned := clean(text)):
            return
        with self._lock:
            for inbox in self._inboxes:
                inbox.add(Message(Severity(severity), cleaned))

    @contextlib.contextmanager
    def listening(self) -> Iterator[Inbox]:
        inbox = Inbox()
        with self._lock:
            self._inboxes.append(inbox)
        try:
            yield inbox
        finally:
            with self._lock:
                self._inboxes.remove(inbox)


_SWITCHBOARD = _Switchboard()


def capture() -> contextlib.AbstractContextManager[Inbox]:
    """Return a context whose value is an ``Inbox`` that gets every line said inside it."""
    return _SWITCHBOARD.listening()


@functools.cache
def logger_for(module: Any) -> Any:
    """Return the process's one logger for a TensorRT module; give it to every builder, parser and runtime."""

    class Logger(module.ILogger):  # type: ignore[misc]  # a class of whichever TensorRT is installed
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            _SWITCHBOARD.deliver(int(severity), text)

    return Logger()


def constructed(make: Callable[[], Any]) -> Any:
    """Return what a constructor of TensorRT's makes; None where the library gives nothing, say for an old driver.

    Its bindings say so with a ``TypeError`` about a null pointer; the reason stands in the log.
    """
    try:
        return make() or None
    except TypeError as error:
        if "nullptr" not in str(error):
            raise
        return None


def clean(text: str) -> str:
    """Return TensorRT's text on one line without the stray driver line and the places in its own source."""
    lines = [line for line in text.splitlines() if not _STRAY.match(line) and not _NEEDLESS.search(line)]
    joined = _PLACE_TAG.sub("", _SOURCE_PLACE.sub("", " ".join(lines)))
    joined = " ".join(joined.split())
    while match := _WRAPPER.match(joined):
        joined = match["text"].strip()
    return joined
