"""Does a runtime load the model?  Asked of the runtime itself, in a process of its own: some die of some models.

The process is started once and asked again and again; one that died is started anew.
"""

import atexit
import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path

import onnx_ir as ir

from mpdeploy.graph.scope import all_nodes
from mpdeploy.memory import free_memory

ONNXRUNTIME, OPENVINO, RTX, TENSORRT = "onnxruntime", "openvino", "rtx", "tensorrt"
TITLES = {
    ONNXRUNTIME: "ONNX Runtime",
    OPENVINO: "OpenVINO",
    RTX: "TensorRT for RTX's parser",
    TENSORRT: "TensorRT's parser",
}
ANY = "any"

_MICROSOFT = "com.microsoft"
_PATIENCE = 300.0  # seconds for one model
_ROOM = 4  # times its file that a model may take in memory while it is loaded
_END = 5.0


@dataclass(frozen=True)
class Question:
    """What the process is asked: load this file in this runtime."""

    path: str
    runtime: str


@dataclass(frozen=True)
class Answer:
    """What the process says: why the runtime does not load the model; empty if it does, or is not installed.

    ``lacks_kernel``: the model is valid, but this build of the runtime has no code for one of its operators.
    """

    reason: str = ""
    lacks_kernel: bool = False


@dataclass(frozen=True)
class Refusal:
    """A runtime that does not load the model, and why; ``crashed`` if its process died of it, or was not ``asked``."""

    runtime: str
    reason: str
    crashed: bool = False
    lacks_kernel: bool = False
    asked: bool = True

    def __str__(self) -> str:
        if not self.asked:
            return f"{TITLES[self.runtime]} was not asked whether it loads this model: {self.reason}"
        verb = "dies of" if self.crashed else "does not load"
        return f"{TITLES[self.runtime]} {verb} this model: {self.reason}"


def refusals(model: ir.Model, path: Path, target: str = ANY) -> tuple[Refusal, ...]:
    """Return which runtimes of a target do not load ``model``, which lies in ``path``.

    A runtime that is not installed is not asked; where there is not enough memory to ask, that is said.  ``any`` asks
    ONNX Runtime, which has hardly any kernel for BF16: a missing one counts only where no other runtime knows the
    operators.
    """
    runtime = ONNXRUNTIME if target == ANY else target
    refusal = _refusal(path, runtime)
    if refusal is None or (refusal.lacks_kernel and target == ANY and not _is_bound(model)):
        return ()
    return (refusal,)


def _is_bound(model: ir.Model) -> bool:
    return any(node.domain == _MICROSOFT for node in all_nodes(model))


def _refusal(path: Path, runtime: str) -> Refusal | None:
    facts = [(str(f.absolute()), f.stat()) for f in (path, *path.parent.glob(f"{path.name}.*.data"))]
    size = sum(stat.st_size for _, stat in facts)
    free = free_memory()
    if size * _ROOM > free:
        return Refusal(runtime, f"{size / 1e9:.1f} GB of it want more than the {free / 1e9:.1f} GB free", asked=False)
    loader, stamp = _loader(), tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in facts)
    # An export converts a model and verifies it: to load it twice would cost its time and memory twice.
    if loader.latest is None or loader.latest[0] != (runtime, stamp):
        loader.latest = (runtime, stamp), loader.ask(Question(str(path.absolute()), runtime))
    answer = loader.latest[1]
    if isinstance(answer, Refusal):
        return answer
    return Refusal(runtime, answer.reason, lacks_kernel=answer.lacks_kernel) if answer.reason else None


class _Loader:
    """The process, from the outside."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.latest: tuple[object, Answer | Refusal] | None = None  # what was asked last, and the answer
        atexit.register(self._end)

    def ask(self, question: Question) -> Answer | Refusal:
        """Return the answer, or the refusal of a runtime that died or took too long."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        assert self._process is not None  # noqa: S101 - started above
        with contextlib.suppress(OSError):  # a process that died shows when it is to answer
            self._connection.send(question)
        try:
            if self._connection.poll(_PATIENCE):
                answer: Answer = self._connection.recv()
                return answer
            self._end()
            return Refusal(question.runtime, f"it takes more than {_PATIENCE:.0f} seconds")
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END)
            code = self._process.poll()
            self._end()
            cause = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
            return Refusal(question.runtime, f"its process ended with {cause}", crashed=True)

    def _start(self) -> None:
        self._end()
        self._connection, theirs = Pipe()
        # What can be imported here can be imported there, and nothing else: no folder slips in ahead of it.
        paths = os.pathsep.join(str(Path(path).absolute()) for path in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mpdeploy.runtime.load_worker", str(theirs.fileno()), str(os.getpid())],
                env=dict(os.environ) | {"PYTHONPATH": paths},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def _end(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None


@functools.cache
def _loader() -> _Loader:
    return _Loader()


def described(found: Sequence[Refusal]) -> tuple[str, ...]:
    """Return a line for each refusal, for notes."""
    return tuple(str(refusal) for refusal in found)
