"""What every command shares: the options --json, --quiet and --debug, and how a result reaches the user.

A command function returns an ``Outcome``.  With ``--json`` its document is the only thing on standard output;
otherwise ``show`` prints it for people.  Logs and progress go to standard error.
"""

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec

import click

from mpdeploy import records
from mpdeploy.cli.console import drop_output, others_on_stderr, warn, write_document
from mpdeploy.errors import InternalError, MpdeployError, UsageError

OUTPUT_OPTIONS = frozenset({"as_json", "quiet", "debug"})  # what ``result_options`` adds, by parameter name
INTERRUPTED, TERMINATED = 130, 143  # 128 + SIGINT and 128 + SIGTERM, as shells expect

P = ParamSpec("P")


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: whatever cleans up after Ctrl-C cleans up after it, too."""


@dataclass(frozen=True)
class Outcome:
    """A command's result: the JSON document, how to show it to a person, and the exit code.

    The code is 0, 1 for a verdict against the model, or that of a fault that is told beside the result.  Of several
    processes that work together only one ``speaks``.
    """

    document: object
    show: Callable[[], None]
    exit_code: int = 0
    speaks: bool = True


def result_options(command: Callable[P, Outcome]) -> Callable[P, int]:
    """Add ``--json``, ``--quiet`` and ``--debug`` to a command and print its ``Outcome``."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        as_json, quiet = kwargs.pop("as_json"), kwargs.pop("quiet")
        kwargs.pop("debug")
        click.get_current_context().obj = {"quiet": quiet}
        with others_on_stderr():  # what a recipe or a library prints is no result
            try:
                outcome = command(*args, **kwargs)
            except BrokenPipeError as error:  # no reader of ours: nothing is printed in there
                raise InternalError("a process that worked for this one has died") from error
        if outcome.speaks:
            _deliver(outcome, as_json=bool(as_json))
        return outcome.exit_code

    decorated: Any = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(run)
    decorated = click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")(decorated)
    return click.option("--debug", is_flag=True, help="Show tracebacks.")(decorated)  # type: ignore[no-any-return]


def _deliver(outcome: Outcome, *, as_json: bool) -> None:
    try:
        if as_json:
            write_document(records.to_json(outcome.document))
        else:
            outcome.show()
        sys.stdout.flush()
    except BrokenPipeError:  # click would make it exit code 1, which is a verdict here
        drop_output()
    except OSError as error:
        drop_output()
        raise UsageError(
            f"the work is done, but the result could not be written to standard output: {error.strerror}",
            remedy="make room, or send it elsewhere",
        ) from error


def print_error(error: MpdeployError, *, as_json: bool) -> None:
    """Print the one line on standard error and, with ``as_json``, the error document on standard output."""
    warn(f"mpdeploy: {error}")
    if as_json:
        fault = {
            "what": error.what,
            "where": error.where,
            "remedy": error.remedy,
            "exit_code": error.exit_code,
        }
        try:
            write_document(json.dumps({"error": fault}, indent=1).encode() + b"\n")
            sys.stdout.flush()
        except OSError:  # the line has said it
            drop_output()
