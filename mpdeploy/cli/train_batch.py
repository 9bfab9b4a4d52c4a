"""`mpdeploy train --find-batch`: how large a batch may be at each level, and what that buys."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from mpdeploy.cli.console import say
from mpdeploy.cli.outcome import Outcome
from mpdeploy.cli.progress import note

if TYPE_CHECKING:
    from mpdeploy.train.batch_search import Found, Tried

_LEVELS = ("fp32", "bf16-mixed", "bf16-master", "fp16-mixed", "fp16-master")


def batch_outcome(recipe: Path, precision: str | None, checkpointing: tuple[str, ...], device: str | None) -> Outcome:
    """Return what was found at the level asked for, or at each that there is a use for."""
    from mpdeploy.amp.levels import Level
    from mpdeploy.train.batch_search import find_batch
    from mpdeploy.train.loading import load_recipe
    from mpdeploy.train.settings import Settings
    from mpdeploy.train.world import join

    world, loaded = join(device), load_recipe(recipe)
    found = []
    for word in [precision] if precision else _LEVELS:
        settings = Settings(Level.named(word), 1, checkpointing=checkpointing)

        def told(tried: "Tried", word: str = word) -> None:
            note(f"{word}: batch {tried.batch:,}, {tried.samples_per_second:,.0f} samples/s{_memory(tried)}")

        found.append(find_batch(loaded, settings, world, told=told))
    own = loaded.recipe.batch_size

    def show() -> None:
        say(*_table(found, own))

    document = {"batch_size": own, "levels": [{**asdict(one), "largest": one.largest.batch} for one in found]}
    return Outcome(document, show)


def _table(found: "list[Found]", own: int) -> list[str]:
    lines = [f"{'level':<12} {'largest batch':>13} {'samples/s':>10}   {'fastest batch':>13} {'samples/s':>10}   ended"]
    for one in found:
        large, fast = one.largest, one.fastest
        lines.append(
            f"{one.level:<12} {large.batch:>13,} {large.samples_per_second:>10,.0f}   "
            f"{fast.batch:>13,} {fast.samples_per_second:>10,.0f}   {one.ended}"
        )
    return [*lines, f"the recipe has batches of {own:,}"]


def _memory(tried: "Tried") -> str:
    return "" if tried.memory is None else f", {tried.memory / 2**20:,.0f} MiB"
