"""Builds in a process of their own, one for each.

A builder that dies, as some do of some graphs, takes nothing with it, and a build can be stopped at once.

And equal inputs give equal plans of TensorRT for RTX, which measures nothing.  It orders some outputs by where they lie
in memory, so a plan depends on all that was allocated before: on earlier builds, on what Python has imported, on the
environment, on the length of paths.  The worker therefore builds one model only, on a heap that nothing else has used
(see ``worker``), and stands in the model's folder, so that all paths it handles are short.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, TypeVar

from mpdeploy.engine.backend import Backend, Inspection, ParsedModel
from mpdeploy.engine.gpu import Gpu
from mpdeploy.engine.monitor import BuildStep, Progress
from mpdeploy.engine.network import Network
from mpdeploy.engine.options import BuildOptions
from mpdeploy.engine.target import Target
from mpdeploy.errors import BuildError, InternalError, MpdeployError

Answer = TypeVar("Answer")
_HEAP_SETTINGS = {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"}  # the worker counts on a heap for each thread
_LAST_WORDS = 10.0  # seconds between the end of the talk and that of the process


@dataclass(frozen=True)
class Parsed:
    """What the worker says when the model is read: what the parser made of it, and what it warned of."""

    network: Network
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Order:
    """What the worker is told to build, and the file to write it to."""

    options: BuildOptions
    target: Target
    output: Path


@dataclass(frozen=True)
class Done:
    """What the worker says when the engine is written; all warnings so far."""

    warnings: tuple[str, ...]


@dataclass(frozen=True)
class IsolatedBackend:
    """A back end whose parsing and building happens elsewhere; what it is and can do is that of ``inner``."""

    inner: Backend

    @property
    def name(self) -> str:
        """The word that ``--backend`` takes."""
        return self.inner.name

    @property
    def version(self) -> str:
        """The version of the library that builds."""
        return self.inner.version

    def target(self, options: BuildOptions, gpus: Sequence[Gpu]) -> Target:
        """Return the target; see ``Backend.target``."""
        return self.inner.target(options, gpus)

    def inspect(self, engine: bytes, target: Target) -> Inspection:
        """Return the counts by TensorRT's own inspector; see ``Backend.inspect``."""
        return self.inner.inspect(engine, target)

    @contextlib.contextmanager
    def parse(self, model: Path) -> Iterator[ParsedModel]:
        """Yield the parsed model; see ``Backend.parse``.  ``BuildError`` also if the process dies of the model."""
        ours, theirs = Pipe()
        with ours, tempfile.TemporaryFile() as said:
            with theirs:
                process = _start(theirs, self.name, model, said)
            try:
                worker = _Worker(model, process, ours, said)
                parsed = worker.expect(Parsed)
                yield _RemoteModel(worker, parsed.network, parsed.warnings)
            finally:
                process.kill()
                process.wait()


@dataclass
class _RemoteModel:
    """A ``ParsedModel`` in another process."""

    worker: "_Worker"
    network: Network
    heard: tuple[str, ...]

    def warnings(self) -> tuple[str, ...]:
        """Return the warnings so far."""
        return self.heard

    def build(self, options: BuildOptions, target: Target, progress: Progress | None, output: Path) -> None:
        """Write the engine; see ``ParsedModel.build``."""
        if options.timing_cache is not None:
            options = replace(options, timing_cache=str(Path(options.timing_cache).absolute()))
        self.worker.connection.send(Order(options, target, output.absolute()))
        self.heard = self.worker.expect(Done, progress).warnings


@dataclass(frozen=True)
class _Worker:
    model: Path
    process: subprocess.Popen[bytes]
    connection: Connection
    said: IO[bytes]

    def expect(self, kind: type[Answer], progress: Progress | None = None) -> Answer:
        """Return the answer of this kind; raise the fault that comes instead."""
        while True:
            try:
                message = self.connection.recv()
            except (EOFError, ConnectionResetError):
                raise self._died() from None
            if isinstance(message, kind):
                return message
            if isinstance(message, MpdeployError):
                if message.where.startswith(self.model.name):  # the worker knows the model by its bare name
                    message.where = f"{self.model}{message.where.removeprefix(self.model.name)}"
                raise message
            if isinstance(message, BuildStep):
                if progress is not None:
                    progress(message)
            else:
                raise InternalError(f"a builder's process said {message!r}", where=str(self.model))

    def _died(self) -> BuildError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_LAST_WORDS)
        self.process.kill()
        code = self.process.wait()
        self.said.seek(0)
        lines = self.said.read().decode(errors="replace").strip().splitlines()
        cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        last = f": {lines[-1]}" if lines else ""
        remedy = (
            "give it more memory" if cause == "SIGKILL" else "keep more of it in FP32, or try another version of it"
        )
        return BuildError(f"the builder crashed on the model ({cause}){last}", where=str(self.model), remedy=remedy)


def _start(connection: Connection, backend: str, model: Path, said: IO[bytes]) -> subprocess.Popen[bytes]:
    # What can be imported here can be imported there, and nothing else: no folder slips in ahead of it.
    settings = {name: value for name, value in os.environ.items() if name not in _HEAP_SETTINGS}
    paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
    return subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "mpdeploy.engine.worker",
            str(connection.fileno()),
            backend,
            model.name,
            str(os.getpid()),
        ],
        env=settings | {"PYTHONPATH": paths},
        cwd=model.parent,
        pass_fds=(connection.fileno(),),
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
    )
