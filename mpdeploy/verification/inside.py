"""Inside the models: the drift of every value, who is to blame, and a repair that was tried."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mpdeploy.graph.scope import all_nodes
from mpdeploy.numerics.budget import Budget
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.compare import compare
from mpdeploy.runtime.emulator import PLAIN
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.inner import InnerRun
from mpdeploy.runtime.pairs import Pair, pair_values
from mpdeploy.runtime.probes import distinct
from mpdeploy.verification.blame import Blame, culprits_of, first_broken
from mpdeploy.verification.layers import measure_layers
from mpdeploy.verification.repair import Trial, find_repair, recipe_of
from mpdeploy.verification.subject import Subject, emulated, opened
from mpdeploy.verification.tasks import Scoring
from mpdeploy.verification.verdict import judge

FEW = 8


def blame_on(ours: Subject, theirs: Subject, feeds: Feeds) -> Blame:
    """Return the drift of every value along the graph, and the culprits; one pass over the data."""
    models = distinct(ours.model), distinct(theirs.model)
    pairs, unpaired = pair_values(*models)

    def run(some: Sequence[Pair]) -> InnerRun:
        return InnerRun(*models, some, (str(ours.path), str(theirs.path)), theirs.arithmetic)

    layers = measure_layers(run, pairs, feeds)
    broken = first_broken(layers)
    shown = {layer.value for layer in layers}
    inside = {pair.name for pair in pairs if pair.within}
    return Blame(
        layers=layers,
        culprits=culprits_of(layers, theirs.plan),
        first_broken=broken.value if broken else "",
        unpaired=len(unpaired),
        hidden=len(inside - shown),
    )


def repair_of(
    blame: Blame,
    ours: Subject,
    theirs: Subject,
    feeds: Feeds,
    budget: Budget,
    scoring: Scoring,
    worst: Sequence[str] = (),
) -> Blame:
    """Return the blame with a repair, tried by converting and verifying again, if there can be one.

    Which nodes the repair can do without is asked of a few feeds only: those of the ``worst`` samples, and where
    something broke first.
    """
    if theirs.coarsest is Format.FP32 or ours.coarsest is not Format.FP32 or not blame.culprits:
        return blame
    operators = {node.op_type for node in all_nodes(ours.model)}
    recipe = recipe_of(ours.path, theirs.coarsest.value, theirs.plan, feeds, operators, ours.timeout)

    asked = dict.fromkeys((*worst, *(layer.sample for layer in blame.layers if layer.broken)))
    few = feeds.among(list(asked)[:FEW]) if asked else feeds.first(FEW)

    def examine(path: Path, some: Feeds) -> Trial:
        limit = theirs.timeout
        plain = theirs.arithmetic == PLAIN
        trial = opened(path, timeout=limit) if plain else emulated(path, theirs.arithmetic, timeout=limit)
        measured = compare(ours.runner, trial.runner, some, trial.coarsest, scoring.scorers(), labels=scoring.labels)
        verdict = judge(measured, budget, trial.runner.describe())
        return Trial(verdict.passed, measured.error, lambda: blame_on(ours, trial, feeds))

    def passes(path: Path) -> bool:
        return examine(path, few).passed

    return replace(blame, repair=find_repair(recipe, blame, lambda path: examine(path, feeds), passes))
