"""A process of its own for each contestant of a benchmark: its memory and its cold start are then its own."""

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from mpdeploy.errors import InternalError, ModelError, MpdeployError
from mpdeploy.runtime.attended import any_given_up
from mpdeploy.runtime.fit import fit
from mpdeploy.runtime.runner import Array, Execution, Feed, Runner, TensorSpec
from mpdeploy.runtime.timing import time_runs
from mpdeploy.session.opening import Kind, Runtime, kind_of, open_runner
from mpdeploy.source.given import NOTHING, Given

_PATIENCE = 10.0  # seconds that a process gets to end by itself

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Opened:
    """A contestant is ready: ``seconds`` to load its file, what it takes, what runs."""

    seconds: float
    inputs: tuple[TensorSpec, ...]
    execution: Execution


@dataclass(frozen=True)
class First:
    """A first result: ``seconds`` for the run, the outputs, and when (``time.time``) it was there."""

    seconds: float
    outputs: dict[str, Array]
    at: float


@dataclass(frozen=True)
class Peak:
    """The most memory that a process has held, in bytes; None where the system does not tell."""

    bytes: int | None


@dataclass(frozen=True)
class _State:
    runner: Runner
    where: str

    def first(self, feed: Feed) -> First:
        fitted = fit(feed, self.runner.inputs, self.where).feed
        start = time.perf_counter()
        outputs = self.runner.run(fitted)
        return First(time.perf_counter() - start, outputs, time.time())

    def timed(self, feed: Feed, seconds: float) -> list[float]:
        fitted = fit(feed, self.runner.inputs, self.where).feed
        return time_runs(lambda: self.runner.run(fitted), seconds)


class Worker:
    """A contestant's process, from the outside.  Use it as a context; leaving it ends the process.

    Every method raises what the contestant raised, or ``ModelError`` if its process died; a contestant that could
    not do one thing may be asked for another.
    """

    def __init__(
        self, path: Path, runtime: Runtime, threads: int, given: Given = NOTHING, timeout: float | None = None
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._path = path
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, path, runtime, threads, given, timeout), daemon=True
        )
        self._theirs = theirs
        self.started = 0.0

    def __enter__(self) -> "Worker":
        self.started = time.time()
        self._process.start()
        self._theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()  # the process ends when nobody talks to it
        self._process.join(_PATIENCE if error is None else 0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    @property
    def pid(self) -> int | None:
        """The number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is still there to be asked."""
        return self._process.is_alive()

    def opened(self) -> Opened:
        """Wait until the file is loaded; call it once, first."""
        return self._answer(Opened)

    def first(self, feed: Feed) -> First:
        """Run once and return the outputs."""
        return self._ask(First, _State.first, feed)

    def timed(self, feed: Feed, seconds: float) -> list[float]:
        """Run for about ``seconds`` and return each run's duration in seconds."""
        answer: list[float] = self._ask(list, _State.timed, feed, seconds)
        return answer

    def peak(self) -> int | None:
        """Return the most memory that the process has held, in bytes; None where the system does not tell."""
        return self._ask(Peak, _peak).bytes

    def _ask(self, kind: type[Answer], task: Callable[..., object], *arguments: object) -> Answer:
        # A dead process shows when its answer is read, if not already here.
        with contextlib.suppress(OSError):
            self._connection.send((task, arguments))
        return self._answer(kind)

    def _answer(self, kind: type[Answer]) -> Answer:
        try:
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(_PATIENCE)
            raise ModelError(
                f"the process that ran it died (exit code {self._process.exitcode})",
                where=str(self._path),
                remedy="it may need more memory than there is",
            ) from error
        if isinstance(answer, Exception):
            raise answer
        if not isinstance(answer, kind):
            raise InternalError(f"a benchmark process answered with a {type(answer).__name__}")
        return answer


def _serve(
    connection: Connection, path: Path, runtime: Runtime, threads: int, given: Given, timeout: float | None
) -> None:
    """The process's whole life: open the file, then answer until the other end is closed."""
    _answer(connection, path, runtime, threads, given, timeout)
    if any_given_up():  # Python would abort beside a thread that does not end
        os._exit(0)


def _answer(
    connection: Connection, path: Path, runtime: Runtime, threads: int, given: Given, timeout: float | None
) -> None:
    try:
        start = time.perf_counter()
        if threads and kind_of(path) is Kind.TORCH:
            import torch

            torch.set_num_threads(threads)
        runner = open_runner(path, runtime, threads=threads, given=given, timeout=timeout)
        connection.send(Opened(time.perf_counter() - start, runner.inputs, runner.describe()))
        state = _State(runner, str(path))
        while True:
            task, arguments = connection.recv()
            try:
                answer = task(state, *arguments)
            except Exception as error:  # noqa: BLE001 - told at the other end; the next task may go well
                answer = _fault_of(error, path)
            connection.send(answer)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the other end is gone
    except Exception as error:  # noqa: BLE001 - told at the other end, if that is still there
        with contextlib.suppress(OSError):
            connection.send(_fault_of(error, path))


def _fault_of(error: Exception, path: Path) -> MpdeployError:
    """A fault that survives the way to another process: of foreign ones only the text does for sure."""
    if isinstance(error, MpdeployError):
        return error
    if isinstance(error, MemoryError):
        return ModelError("there is not enough memory to run it", where=str(path), remedy="try a smaller --batch")
    return InternalError(f"{type(error).__name__}: {error}", where=str(path))


def _peak(state: _State) -> Peak:
    status = Path("/proc/self/status")
    if status.is_file():  # not getrusage: on Linux it includes the parent's memory before exec
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return Peak(int(line.split()[1]) * 1024)
    if sys.platform == "darwin":
        import resource

        return Peak(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return Peak(None)
