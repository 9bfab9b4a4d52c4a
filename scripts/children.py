"""Commands in forked processes, which begin at once and take nothing with them, whatever happens to them.

For the scripts that break files and kill commands.  A fork spares the seconds of importing: call ``warm`` first, and
run nothing heavy in this process itself.
"""

import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads do not survive a fork, and many would disturb each other

_HEAVY = (
    "torch", "torch.export", "onnx", "onnx_ir", "onnxruntime", "rich.table", "jinja2", "mpdeploy.cli",
    "mpdeploy.pipeline", "mpdeploy.searching.api", "mpdeploy.verification.api", "mpdeploy.session.bench",
    "mpdeploy.session.compared", "mpdeploy.session.outputs", "mpdeploy.report.write", "mpdeploy.bundle.store",
    "mpdeploy.engine.api", "mpdeploy.train", "mpdeploy.train.loop",
)  # fmt: skip
_LOOK = 0.005


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit code (negative: by that signal; None: not in time), peak memory in bytes, output."""

    code: int | None
    peak: int
    text: str


def warm() -> None:
    """Import what the commands import."""
    for name in _HEAVY:
        importlib.import_module(name)


def start(work: Callable[[], object], folder: Path, log: Path) -> int:
    """Begin ``work`` in a process of its own that stands in ``folder`` and writes to ``log``; return its number."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(folder)
        sys.path.insert(0, "")
        vars(sys.modules["__main__"]).pop("__file__", None)  # processes that the command starts do not import it
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - shown in the log; nothing may go on in the copy of the parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def command(words: Sequence[object]) -> Callable[[], object]:
    """Return the work that is the command ``mpdeploy WORDS``."""

    def work() -> None:
        from mpdeploy.cli import main

        sys.argv = ["mpdeploy", *map(str, words)]
        main()

    return work


def wait(pid: int, seconds: float, log: Path) -> Ended:
    """Return how a process ended; after so many seconds it is killed, with all that it started."""
    until = time.monotonic() + seconds
    while True:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            break
        if time.monotonic() > until:
            os.killpg(pid, signal.SIGKILL)
            _, _, used = os.wait4(pid, 0)
            return Ended(None, used.ru_maxrss * 1024, _text(log))
        time.sleep(_LOOK)
    return Ended(os.waitstatus_to_exitcode(status), used.ru_maxrss * 1024, _text(log))


def run(work: Callable[[], object], folder: Path, log: Path, seconds: float = 300.0) -> Ended:
    """Do ``work`` in a process of its own and return how that ended."""
    return wait(start(work, folder, log), seconds, log)


def _text(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""
