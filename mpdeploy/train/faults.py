"""What the surroundings do to a training, told in one line that says how it goes on."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from mpdeploy.errors import DependencyError, MpdeployError, UsageError
from mpdeploy.train.states import STATES, newest
from mpdeploy.train.surroundings import lost_peer, lost_worker, out_of_memory

AGAIN = "the same command with --resume"


@contextlib.contextmanager
def surroundings_told(folder: Path, again: str = AGAIN) -> Iterator[None]:
    """Turn what the surroundings do to the training in ``folder`` into a fault whose remedy says how it goes on.

    ``again`` is what makes it go on from its newest state.
    A full disk stays the ``UsageError`` that it is, memory that ran out becomes one; a process that is lost becomes a
    ``DependencyError``.
    """
    try:
        yield
    except MpdeployError as error:
        if isinstance(error.__cause__, OSError) and not error.remedy.endswith(words := _goes_on(folder, again)):
            error.remedy = f"{error.remedy}; {words}"
        raise
    except BaseException as error:
        met = _met_by_shards(error)
        if isinstance(met, OSError):
            raise UsageError(
                f"cannot write the output: {met.strerror or type(met).__name__}",
                where=str(folder),
                remedy=f"free some space or choose another folder; {_goes_on(folder, again)}",
            ) from error
        fault = _fault_of(met, folder, again)
        if fault is None:
            raise
        raise fault from error


def _fault_of(error: BaseException, folder: Path, again: str) -> MpdeployError | None:
    if lost_peer(error):
        return DependencyError(
            f"another process of this training has ended or does not answer: {_first_words(error)}",
            where=str(folder),
            remedy=f"see what it said; {_goes_on(folder, again)}",
        )
    if lost_worker(error):
        return DependencyError(
            f"a process that loads data has ended: {_first_words(error)}",
            where=str(folder),
            remedy=f"give it more memory, or take fewer workers; {_goes_on(folder, again)}",
        )
    if out_of_memory(error):
        return UsageError(
            f"memory ran out: {_first_words(error)}",
            where=str(folder),
            remedy="take each batch in parts (--accumulate 4, or auto), a smaller batch_size, or --checkpoint PATTERN "
            f"(activations are computed again instead of kept); {_goes_on(folder, again)}",
        )
    return None


def _met_by_shards(error: BaseException) -> BaseException:
    """What lies behind the exception of torch.distributed.checkpoint, which is no ``Exception`` of Python's."""
    failures = getattr(error, "failures", None)
    if type(error).__name__ == "CheckpointException" and isinstance(failures, dict):
        return next((failure[0] for failure in failures.values()), error)
    return error


def _goes_on(folder: Path, again: str) -> str:
    found = newest(folder / STATES)
    if found is None:
        return "then start again"
    return f"{again} goes on after step {int(found.stem):,}"


def _first_words(error: BaseException) -> str:
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line[:160].rstrip(" .:")
