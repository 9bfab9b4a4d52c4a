"""The one writer: whatever mpdeploy says goes through here, and what comes from files is escaped on the way.

Only this file prints.  Nobody's names, notes or prints can steer the terminal, forge a line or spoil a JSON document.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mpdeploy.texts import json_escaped, one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text


def prepare_streams() -> None:
    """Make standard output and error fit to be written to, whatever the caller made of them.

    A terminal that lacks a sign gets its number.  What is closed leads to nowhere: its number must not become that of
    an output file.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say(*lines: str) -> None:
    """Write each line to standard output, as one line."""
    for line in lines:
        print(one_line(line))


def warn(line: str) -> None:
    """Write one line to standard error."""
    with contextlib.suppress(OSError):  # there is nobody left to tell
        print(one_line(line), file=sys.stderr, flush=True)


def write_document(content: bytes) -> None:
    """Write a JSON document to standard output."""
    sys.stdout.write(json_escaped(content.decode()))


def write_text(text: str) -> None:
    """Write a text of our own with all its lines to standard output."""
    print(text, end="" if text.endswith("\n") else "\n")


def show(what: "RenderableType", *, width: int | None = None) -> None:
    """Write a table, or all else that rich can draw, to standard output; ``width`` counts where that is no terminal."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if width is not None and not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=width)
    console.print(_Harmless(what))


def plain_table() -> "Table":
    """Return a table without lines and edges, to which columns are added."""
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))


def add_row(table: "Table", cells: Iterable["str | Text"], style: str | None = None) -> None:
    """Add a row whose texts stand as they are: on one line, with no markup in them."""
    from rich.text import Text

    table.add_row(*(Text(one_line(cell)) if isinstance(cell, str) else cell for cell in cells), style=style)


class _Harmless:
    """Anything that rich draws, with the text in it escaped after it was laid out."""

    def __init__(self, inner: "RenderableType") -> None:
        self._inner = inner

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.segment import Segment

        for segment in console.render(self._inner, options):
            if not segment.control:
                lines = segment.text.split("\n")
                yield Segment("\n".join(map(one_line, lines)), segment.style)


@contextlib.contextmanager
def others_on_stderr() -> Iterator[None]:
    """Send to standard error what anybody else prints inside, be it from Python, from C or from another process."""
    try:
        kept = os.dup(1)
    except OSError:  # standard output is closed
        yield
        return
    try:
        with contextlib.redirect_stdout(sys.stderr):
            os.dup2(2, 1)
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def drop_output() -> None:
    """Send what standard output still holds, and all that comes, to nowhere: its reader went away, as `head` does."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
