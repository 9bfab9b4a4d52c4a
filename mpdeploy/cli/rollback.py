"""`mpdeploy rollback`: go back to the release before."""

from pathlib import Path

import click

from mpdeploy.cli.console import say
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.user import user_name


@click.command()
@click.option("--store", required=True, type=click.Path(path_type=Path), help="The folder that holds the releases.")
@click.option("--why", required=True, help="The reason, for the history.")
@click.option("--to", default="", metavar="VERSION", help="A particular version instead of the previous one.")
@click.option("--who", default=user_name, show_default="the user", help="Who made the decision.")
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    help="Bundles must be signed by this ed25519 public key (PEM); the store remembers it.",
)
@result_options
def command(store: Path, why: str, to: str, who: str, key: Path | None) -> Outcome:
    """Make the previous version current again, after checking its files."""
    from mpdeploy.bundle.store import Store

    entry = Store(store, key).rollback(who=who, why=why, to=to)
    return Outcome(entry, lambda: say(f"{store}: back to {entry.version} from {entry.previous}"))
