"""Progress on standard error: a bar on a terminal, plain lines elsewhere, nothing with --quiet."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import click

from mpdeploy.cli.console import warn
from mpdeploy.texts import one_line

Item = TypeVar("Item")
Report = Callable[[float, str], None]  # the share done, 0 to 1, and what is going on

_PLAIN_INTERVAL = 5.0  # seconds between plain lines


def note(text: str) -> None:
    """Write one line of log to standard error, unless --quiet was given."""
    if not _quiet():
        warn(text)


def track(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items while showing how far it is: a bar with ETA on a terminal, else a line every 5 seconds."""
    if _quiet():
        yield from items
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import track as rich_track

        yield from rich_track(items, escape(one_line(what)), total=total, console=Console(stderr=True), transient=True)
    else:
        last = time.monotonic()
        for done, item in enumerate(items):
            now = time.monotonic()
            if now - last >= _PLAIN_INTERVAL:
                last = now
                note(f"{what}: {done}" + (f" of {total}" if total is not None else ""))
            yield item


@contextlib.contextmanager
def meter(what: str) -> Iterator[Report]:
    """Yield a function that shows how far one long call is: a bar on a terminal, else a line every 5 seconds."""
    if _quiet():
        yield lambda share, detail: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bars:
            bar = bars.add_task(escape(one_line(what)), total=1.0)

            def draw(share: float, detail: str) -> None:
                bars.update(bar, completed=share, description=escape(one_line(f"{what}: {detail}")))

            yield draw
    else:
        last = time.monotonic()

        def report(share: float, detail: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _PLAIN_INTERVAL:
                last = now
                note(f"{what}: {share:.0%}, {detail}")

        yield report


def _quiet() -> bool:
    context = click.get_current_context(silent=True)
    return bool(context and context.obj and context.obj.get("quiet"))
