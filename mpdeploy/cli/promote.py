"""`mpdeploy promote`: make a release the current one."""

from pathlib import Path

import click

from mpdeploy.cli.console import say
from mpdeploy.cli.outcome import Outcome, result_options
from mpdeploy.cli.user import user_name


@click.command(
    epilog="The store holds all versions side by side; STORE/current is a link that changes in one step, "
    "STORE/history.json keeps who changed it, when and why."
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--store", required=True, type=click.Path(path_type=Path), help="The folder that holds the releases.")
@click.option("--why", required=True, help="The reason, for the history.")
@click.option("--who", default=user_name, show_default="the user", help="Who made the decision.")
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    help="Bundles must be signed by this ed25519 public key (PEM); the store remembers it.",
)
@result_options
def command(bundle: Path, store: Path, why: str, who: str, key: Path | None) -> Outcome:
    """Add BUNDLE to the store and make its version the current one.

    Refused (exit code 1) if a byte of it changed or its verdict is not a pass.
    """
    from mpdeploy.bundle.store import Store

    entry = Store(store, key).promote(bundle, who=who, why=why)
    return Outcome(entry, lambda: say(f"{store}: {entry.version} is current, before it {entry.previous or 'none'}"))
