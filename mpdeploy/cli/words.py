"""Words that users type: taken in any case, and answered with what was probably meant."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import click


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that was probably meant; empty if none is near."""
    words = {other.lower(): other for other in known}
    typed = word.lower()
    close = [other for other in words if other.startswith(typed)] or difflib.get_close_matches(typed, words, 1)
    return words[close[0]] if close and typed else ""


def _seconds(value: float | None) -> float | None:
    if value is None:
        return None
    from mpdeploy.graph.patience import require_seconds  # imports the graph library

    return require_seconds(value)


timeout_option = click.option(
    "--timeout",
    type=float,
    metavar="SECONDS",
    callback=lambda context, option, value: _seconds(value),
    help="The most that one run of a model may take (engines aside); a longer one is stopped: exit code 3  "
    "[default: no limit].",
)


class Word(click.Choice[str]):
    """One of several words, in any case."""

    def __init__(self, choices: Sequence[str]) -> None:
        super().__init__(choices, case_sensitive=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the word as we spell it; say which one is near if there is no such word."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            meant = nearest(str(value), self.choices)
            if not meant:
                raise
            raise click.BadParameter(f"{error.message} Did you mean {meant}?", ctx, param) from error


class Group(click.Group):
    """A command with others below it: called alone it prints its help, and a mistyped one gets a suggestion."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **{**attributes, "no_args_is_help": False, "invoke_without_command": True})

    def invoke(self, ctx: click.Context) -> Any:
        """Print the help if there is nothing to call."""
        if not ctx._protected_args and not ctx.args:
            click.echo(ctx.get_help())
            return 0
        return super().invoke(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; say which one is near if there is none of that name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            meant = nearest(args[0], self.list_commands(ctx))
            if not meant or "Did you mean" in error.message:
                raise
            raise click.UsageError(f"{error.message.rstrip('.')}. Did you mean {meant}?", ctx) from error
