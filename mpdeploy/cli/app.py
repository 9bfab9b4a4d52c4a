"""The `mpdeploy` command: finds a subcommand's file only when it is called, and turns faults into exit codes."""

import importlib
import io
import os
import sys
import traceback
from typing import NoReturn

import click

from mpdeploy import __version__
from mpdeploy.cli.outcome import INTERRUPTED, drop_output, print_error
from mpdeploy.errors import InternalError, MpdeployError, UsageError

# name -> what `--help` says of it; `mpdeploy.cli.<name>` holds the command as `command`.
COMMANDS = {
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


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"mpdeploy.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="mpdeploy")
def cli() -> None:
    """Train with mixed precision, convert to FP16/BF16 ONNX, build TensorRT engines, prove the drift.

    Exit codes: 0 done; 1 verification failed; 2 usage or bad input; 3 the model cannot be processed; 4 a
    dependency or the hardware is missing; 5 the engine build failed; 70 a fault of mpdeploy.
    """


def main(args: list[str] | None = None) -> NoReturn:
    """Run the command line and exit with the code that the contract gives."""
    words = sys.argv[1:] if args is None else args
    # Options are parsed by the subcommand; these two must hold even when that parsing is what fails.
    debug, as_json = "--debug" in words, "--json" in words
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that lacks a sign gets its number, not a crash
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _require_text(words)
        code = cli.main(args=words, prog_name="mpdeploy", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        remedy = f"see '{context.command_path} --help'" if context else ""
        fault: MpdeployError = UsageError(error.format_message().rstrip("."), remedy=remedy)
    except MpdeployError as error:
        fault = error
    except (KeyboardInterrupt, click.Abort):
        _interrupted()
    except BrokenPipeError:
        drop_output()
        sys.exit(0)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a fault of ours, told as one line
        fault = InternalError(
            f"{type(error).__name__}: {error}",
            remedy="this is a fault of mpdeploy; --debug shows the traceback",
        )
        fault.__cause__ = error
    else:
        _end(code if isinstance(code, int) else 0)
    if _came_from_ctrl_c(fault):
        _interrupted()
    if debug:
        traceback.print_exception(fault)
    print_error(fault, as_json=as_json)
    _end(fault.exit_code)


def _end(code: int) -> NoReturn:
    if os.environ.get("WORLD_SIZE", "1") != "1" and "mpdeploy.train.world" in sys.modules:
        from mpdeploy.train.world import end_at_once

        end_at_once(code)
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


def _interrupted() -> NoReturn:
    print("mpdeploy: interrupted; nothing half-written was left", file=sys.stderr)
    sys.exit(INTERRUPTED)


def _came_from_ctrl_c(fault: BaseException) -> bool:
    """Tell whether a fault is a Ctrl-C in other clothes: an extension module that it hits while loading fails to."""
    error: BaseException | None = fault
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
