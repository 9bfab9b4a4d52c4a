"""Two runners on the same data, feed by feed: the drift of every output they share."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mpdeploy.errors import UsageError
from mpdeploy.numerics.drift import DriftMeter, OutputDrift
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.scores import Score, Scorer, results_of
from mpdeploy.runtime.doubts import doubts_of
from mpdeploy.runtime.feeds import LABELS, Feeds
from mpdeploy.runtime.fit import Fitted, fit, renamed
from mpdeploy.runtime.runner import Array, Feed, Runner
from mpdeploy.runtime.slices import slices
from mpdeploy.runtime.truth import UNKNOWN, truth_in


@dataclass(frozen=True)
class Comparison:
    """What came out: each shared output's drift, outputs that only the reference has, counts, remarks, scores."""

    outputs: tuple[OutputDrift, ...]
    missing: tuple[str, ...]
    feeds: int
    samples: int
    notes: tuple[str, ...]
    scores: tuple[Score, ...] = ()

    @property
    def error(self) -> float | None:
        """The largest norm-relative error of an output that is no integer; None if one is not finite."""
        errors = [output.norm_relative for output in self.outputs if not output.exact and output.elements]
        return None if None in errors else max((error for error in errors if error is not None), default=0.0)


def compare(
    reference: Runner,
    candidate: Runner,
    feeds: Feeds,
    coarsest: Format,
    scorers: Sequence[Scorer] = (),
    *,
    labels: bool = True,
) -> Comparison:
    """Run both on every feed and return the drift of the candidate's outputs; one feed in memory at a time.

    ``coarsest`` is the candidate's coarsest format.  Outputs are paired by name, or, where no name is shared, by
    position.  Outputs that a scorer covers are left to it.  With ``labels`` false the right answers in the data are
    not read.  Raises ``UsageError`` if the data do not fit either
    model.
    """
    meters: dict[str, DriftMeter] = {}
    missing: dict[str, None] = {}
    notes: dict[str, None] = {}
    covered = {name for scorer in scorers for name in scorer.covers}
    count = samples = 0
    for where, first, feed in _parts(feeds, reference):
        ours = fit(feed, reference.inputs, where)
        other, said = renamed(feed, reference.inputs, candidate.inputs)
        theirs = _fit_candidate(other, reference, candidate, where)
        notes.update(dict.fromkeys(doubts_of(feed, reference.inputs)))
        notes.update(dict.fromkeys(f"reference: {note}" for note in ours.notes))
        notes.update(dict.fromkeys(f"candidate: {note}" for note in (*said, *theirs.notes)))
        rows = _rows(ours.feed)
        expected, got = reference.run(ours.feed), candidate.run(theirs.feed)
        pairs = _pairs(list(expected), list(got), notes)
        shared = {name: partner for name, partner in pairs.items() if partner is not None}
        missing.update(dict.fromkeys(name for name in pairs if name not in shared))
        truth = truth_in(ours.extras, expected, rows, where) if labels else UNKNOWN
        if labels and LABELS in ours.extras and not (truth.labels or truth.targets):
            notes[f"'{LABELS}' belong to no output: no accuracy was counted"] = None
        for scorer in scorers:
            theirs_by_name = {name: got[partner] for name, partner in shared.items()}
            scorer.add(expected, theirs_by_name, feed, rows, where)
        for name, partner in shared.items():
            if name in covered:
                continue
            if name not in meters:
                meters[name] = DriftMeter(name, coarsest)
            classes, targets = truth.labels.get(name), truth.targets.get(name)
            meters[name].add(expected[name], got[partner], rows, where, classes, first, targets)
        count, samples = count + (first == 0), samples + rows
    outputs = tuple(meter.result() for meter in meters.values())
    notes.update(dict.fromkeys(f"output '{o.name}' was empty on all data" for o in outputs if not o.elements))
    return Comparison(outputs, tuple(missing), count, samples, tuple(notes), results_of(scorers))


def _fit_candidate(feed: Feed, reference: Runner, candidate: Runner, where: str) -> Fitted:
    """Fit a feed that the reference takes to the candidate; where it does not fit, the models differ, not the data."""
    try:
        return fit(feed, candidate.inputs, where)
    except UsageError as error:
        ours, theirs = (", ".join(map(str, runner.inputs)) for runner in (reference, candidate))
        if ours == theirs:
            raise
        raise UsageError(
            f"the models do not match: the reference takes {ours}, the candidate takes {theirs}",
            where=where,
            remedy="is the candidate a conversion of this reference?",
        ) from error


def _parts(feeds: Feeds, reference: Runner) -> Iterator[tuple[str, int, Feed]]:
    """The feeds, large ones in slices: name, index of the first row, arrays."""
    for where, feed in feeds.labelled():
        for first, part in slices(feed, reference.inputs):
            yield where, first, part


def _rows(feed: Mapping[str, Array]) -> int:
    """The number of samples in a feed: the length of the first axis, if all inputs that have one agree."""
    lengths = {array.shape[0] for array in feed.values() if array.ndim}
    return lengths.pop() if len(lengths) == 1 else 1


def _pairs(ours: Sequence[str], theirs: Sequence[str], notes: dict[str, None]) -> dict[str, str | None]:
    if len(ours) == len(theirs) and not set(ours) & set(theirs):
        notes["outputs have other names in the candidate: they are paired by position"] = None
        return dict(zip(ours, theirs, strict=True))
    own = [name for name in theirs if name not in ours]
    if own:
        notes[f"outputs that only the candidate has are not compared: {', '.join(own)}"] = None
    return {name: name if name in theirs else None for name in ours}
