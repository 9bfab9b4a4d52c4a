"""Every fault that mpdeploy reports, as a tree; each class has its exit code.

    MpdeployError
    ├── VerificationFailed   1   the candidate drifts over its budget
    ├── UsageError           2   a flag, a file or data from outside is wrong
    ├── ModelError           3   the model cannot be processed
    │   └── TrainingDiverged     nothing finite comes out of training any more
    ├── DependencyError      4   a package or the hardware is missing
    ├── BuildError           5   the engine build failed
    └── InternalError       70   a fault of ours

An error says *what* is wrong, *where*, and the *remedy*: what to do about it.  ``str(error)`` is one line.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from mpdeploy.texts import one_line


class MpdeployError(Exception):
    """Base of all faults.  ``str()`` gives one line: what, where in brackets, then the remedy."""

    exit_code = 70

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.where, self.remedy = _line(what), _line(where), _line(remedy)

    def __str__(self) -> str:
        line = f"{self.what} [{self.where}]" if self.where else self.what
        return f"{line}; {self.remedy}" if self.remedy else line


@contextlib.contextmanager
def named_in(scratch: Path, home: Path) -> Iterator[None]:
    """Let errors about files in a scratch folder name them where they will be: in ``home``."""
    try:
        yield
    except MpdeployError as error:
        for part in ("what", "where", "remedy"):
            setattr(error, part, getattr(error, part).replace(str(scratch), str(home)))
        raise


def _line(text: str) -> str:
    return one_line(" ".join(text.split()))  # names in it come from files


class VerificationFailed(MpdeployError):  # noqa: N818 - a verdict, not a malfunction
    """The candidate's drift is over budget."""

    exit_code = 1


class UsageError(MpdeployError):
    """A flag, a file, a folder or data given from outside is wrong."""

    exit_code = 2


class ModelError(MpdeployError):
    """The model is invalid or uses something that cannot be processed safely."""

    exit_code = 3


class TrainingDiverged(ModelError):  # noqa: N818 - a finding, not a malfunction
    """Step after step, training yields gradients that are infinite or NaN."""


class DependencyError(MpdeployError):
    """An optional package or a piece of hardware is missing."""

    exit_code = 4


class BuildError(MpdeployError):
    """The engine builder refused the model or failed."""

    exit_code = 5


class InternalError(MpdeployError):
    """An invariant of mpdeploy itself is broken."""

    exit_code = 70
