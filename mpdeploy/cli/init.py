"""`mpdeploy init`: write a recipe to start from."""

from pathlib import Path

import click

import mpdeploy
from mpdeploy.cli.console import say
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.errors import UsageError


@click.command("init")
@click.argument("recipe", type=click.Path(path_type=Path), default=Path("recipe.py"))
@result_options
def command(recipe: Path) -> Outcome:
    """Write RECIPE, a commented recipe that trains as it stands, to start from  [recipe.py]."""
    from mpdeploy.files import write_text

    if recipe.suffix != ".py":
        raise UsageError("a recipe is a Python file", where=str(recipe), remedy=f"name it {recipe.name}.py")
    if recipe.exists():
        raise UsageError("there is a file already", where=str(recipe), remedy="name another one")
    text = (Path(mpdeploy.__file__).parent / "train" / "starter.py").read_text(encoding="utf-8")
    write_text(recipe, text.replace("RECIPE", str(recipe)))

    def show() -> None:
        say(f"{recipe}: a recipe to start from; it trains as it stands")
        say(f"next: mpdeploy train {recipe}")

    return Outcome({"recipe": str(recipe)}, show)
