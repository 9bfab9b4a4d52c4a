"""The options that say of a torch model what its file does not: the same for every command that takes one."""

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ParamSpec, TypeVar

import click

P = ParamSpec("P")
R = TypeVar("R")


def torch_options(command: Callable[P, R]) -> Callable[P, R]:
    """Add the options below; the command gets them as one ``given``."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from mpdeploy.source.given import Given

        kwargs["given"] = Given(**{field.name: kwargs.pop(field.name) for field in fields(Given)})  # type: ignore[arg-type]
        return command(*args, **kwargs)

    decorated: Any = run
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


_OPTIONS = (
    click.option("--recipe", help="The recipe of a checkpoint, if it is not in ./models/."),
    click.option(
        "--model", "factory", metavar="FILE.py:FUNCTION", help="The function that builds the model for a state dict."
    ),
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="NAME:SHAPE[:DTYPE]",
        help="As in image:batch,3,224,224 or ids:batch,length=128:int64; once for each input, in order.",
    ),
    click.option("--weights", metavar="NAME", help="ema, model, or an entry, where a file holds several."),
    click.option(
        "--ignore-weights",
        multiple=True,
        metavar="PATTERN",
        help="Stored weights to ignore where the model lacks them, as in 'loss.*'.",
    ),
    click.option(
        "--keep-output", "outputs", multiple=True, metavar="NAME", help="Keep only this output; may be given again."
    ),
    click.option("--trust", is_flag=True, help="Let a pickle run code: only for files you made yourself."),
)
