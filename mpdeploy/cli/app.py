"""The `mpdeploy` command: finds a subcommand's file only when it is called, and turns faults into exit codes."""

import contextlib
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

import click

from mpdeploy import __version__
from mpdeploy.cli.console import drop_output, prepare_streams, warn
from mpdeploy.cli.examples import with_examples
from mpdeploy.cli.outcome import INTERRUPTED, TERMINATED, TerminatedError, print_error
from mpdeploy.cli.words import Group
from mpdeploy.errors import InternalError, MpdeployError, UsageError

# name -> what `--help` says of it; `mpdeploy.cli.<name>` holds the command as `command`.
COMMANDS = {
    "init": "Write a recipe to start from.",
    "train": "Train a recipe with mixed precision and save a checkpoint.",
    "export": "Take a checkpoint the whole road: FP32 ONNX, mixed-precision ONNX, report, engine.",
    "convert": "Convert an FP32 ONNX model to FP16 or BF16.",
    "search": "Convert with as much in FP16 or BF16 as an accuracy budget allows.",
    "verify": "Measure a candidate's drift against its FP32 reference and give a verdict.",
    "build": "Build an engine from an ONNX model.",
    "inspect": "Explain a model, a plan, a report or an engine.",
    "run": "Run a model, an engine or a checkpoint over data.",
    "bench": "Time models side by side.",
    "pipeline": "Train, export, convert, verify, build and bundle: only what is not done yet.",
    "bundle": "Pack a release that stands alone, or verify one.",
    "promote": "Make a release the current one.",
    "rollback": "Go back to the release before.",
    "doctor": "Say which runtimes, formats and engine back ends work here.",
}


class _Commands(Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"mpdeploy.cli.{cmd_name}").command
        return with_examples(command, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="mpdeploy")
def cli() -> None:
    """Train with mixed precision, convert to FP16/BF16 ONNX, build TensorRT engines, prove the drift.

    Exit codes: 0 done; 1 verification failed; 2 usage or bad input; 3 the model cannot be processed; 4 a
    dependency or the hardware is missing; 5 the engine build failed; 70 a fault of mpdeploy; 130 and 143 interrupted.
    """


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with the code that the contract gives."""
    words = sys.argv[1:] if args is None else args
    # Options are parsed by the subcommand; these two must hold even when that parsing is what fails.
    debug, as_json = "--debug" in words, "--json" in words
    prepare_streams()
    try:
        with _stopped_by_sigterm():
            _require_text(words)
            code = cli.main(args=words, prog_name="mpdeploy", standalone_mode=False)
            sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        sys.exit(0)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the last line of defence: told as one line
        stop = _stop_in(error)
        if stop is not None:
            _interrupted(stop)
        fault = _fault_of(error)
    else:
        _end(code if isinstance(code, int) else 0)
    if debug:
        traceback.print_exception(fault)
    print_error(fault, as_json=as_json)
    _end(fault.exit_code)


def _fault_of(error: BaseException) -> MpdeployError:
    """Return the fault that an exception stands for: one of the surroundings, or one of ours."""
    if isinstance(error, MpdeployError):
        return error
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        remedy = f"see '{context.command_path} --help'" if context else ""
        return UsageError(error.format_message().rstrip("."), remedy=remedy)
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        where = "" if error.filename is None else str(error.filename)
        remedy = "check the path, who may use it, and the room on the disk"
        fault: MpdeployError = UsageError(error.strerror or type(error).__name__, where=where, remedy=remedy)
    elif isinstance(error, MemoryError):
        fault = UsageError(f"there is not enough memory: {error}".rstrip(": "), remedy="take smaller sizes")
    elif isinstance(error, RecursionError):
        fault = UsageError("what was read is nested too deeply", remedy="check where the file comes from")
    else:
        remedy = "this is a fault of mpdeploy; --debug shows the traceback"
        fault = InternalError(f"{type(error).__name__}: {error}", remedy=remedy)
    fault.__cause__ = error
    return fault


def _end(code: int) -> NoReturn:
    if os.environ.get("WORLD_SIZE", "1") != "1" and "mpdeploy.train.world" in sys.modules:
        from mpdeploy.train.world import end_at_once

        end_at_once(code)
    attended = sys.modules.get("mpdeploy.runtime.attended")
    if attended is not None and attended.any_given_up():  # Python would abort beside a thread that does not end
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):  # the call may have replaced some
            if stream is not None:
                stream.flush()
        os._exit(code)
    sys.exit(code)


def _require_text(words: list[str]) -> None:
    """Refuse names whose bytes are no UTF-8: they can be written into no report, no plan and no manifest."""
    for word in words:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(
                "a name is not written in UTF-8", where=word, remedy="rename the file, or name it through a link"
            ) from error


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does, unless it is ignored, or this is not the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TerminatedError

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupted(stop: BaseException) -> NoReturn:
    terminated = isinstance(stop, TerminatedError)
    kept = str(stop) if isinstance(stop, KeyboardInterrupt) and stop.args else "nothing half-written was left"
    warn(f"mpdeploy: {'terminated' if terminated else 'interrupted'}; {kept}")
    _end(TERMINATED if terminated else INTERRUPTED)


def _stop_in(fault: BaseException) -> BaseException | None:
    """Return the signal behind a fault: click gives it other clothes, an extension module fails to load of it."""
    error: BaseException | None = fault
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return fault if error is None and isinstance(fault, click.Abort) else error
