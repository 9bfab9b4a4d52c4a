"""What every command shares: the options --json, --quiet and --debug, and how a result reaches the user.

A command function returns an ``Outcome``.  With ``--json`` its document is the only thing on standard output;
otherwise ``show`` prints it for people.  Logs and progress go to standard error.
"""

import functools
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec

import click

from mpdeploy import records
from mpdeploy.errors import MpdeployError

OUTPUT_OPTIONS = frozenset({"as_json", "quiet", "debug"})  # what ``result_options`` adds, by parameter name
INTERRUPTED = 130  # 128 + SIGINT, as shells expect

P = ParamSpec("P")


@dataclass(frozen=True)
class Outcome:
    """A command's result: the JSON document, how to show it to a person, and the exit code.

    The code is 0, 1 for a verdict against the model, or that of a fault that is told beside the result.
    """

    document: object
    show: Callable[[], None]
    exit_code: int = 0


def result_options(command: Callable[P, Outcome]) -> Callable[P, int]:
    """Add ``--json``, ``--quiet`` and ``--debug`` to a command and print its ``Outcome``."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        as_json, quiet = kwargs.pop("as_json"), kwargs.pop("quiet")
        kwargs.pop("debug")
        click.get_current_context().obj = {"quiet": quiet}
        outcome = command(*args, **kwargs)
        try:
            if as_json:
                sys.stdout.buffer.write(records.to_json(outcome.document))
            else:
                outcome.show()
            sys.stdout.flush()
        except BrokenPipeError:  # click would make it exit code 1, which is a verdict here
            drop_output()
        return outcome.exit_code

    decorated: Any = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(run)
    decorated = click.option("-q", "--quiet", is_flag=True, help="No progress on standard error.")(decorated)
    return click.option("--debug", is_flag=True, help="Show tracebacks.")(decorated)  # type: ignore[no-any-return]


def drop_output() -> None:
    """Send what standard output still holds to nowhere: its reader went away, as `head` does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_error(error: MpdeployError, *, as_json: bool) -> None:
    """Print the one line on standard error and, with ``as_json``, the error document on standard output."""
    print(f"mpdeploy: {error}", file=sys.stderr)
    if as_json:
        fault = {
            "what": error.what,
            "where": error.where,
            "remedy": error.remedy,
            "exit_code": error.exit_code,
        }
        json.dump({"error": fault}, sys.stdout, indent=1)
        print()
