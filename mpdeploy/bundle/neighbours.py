"""Does a sample's result depend on the samples beside it?  Only where it does not may a server join requests."""

import itertools
import re

import numpy as np

from mpdeploy.bundle.contents import FoundModel
from mpdeploy.errors import MpdeployError
from mpdeploy.graph import io
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.choose import truthful_runner
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.fit import fit
from mpdeploy.runtime.runner import Feed, Runner, TensorSpec

# Names of a first axis along which requests are joined, although it counts something else than requests.
_NO_BATCH = re.compile(r"time|seq|len|step|frame|token|word|char|point|node|edge|channel|height|width", re.IGNORECASE)
_OPEN = 3  # the size of an open axis in made-up samples
_SAME = {Format.FP16: 1e-2, Format.BF16: 5e-2}  # relative to a row's norm: sums in another order, rounded
_SAME_FP32 = 1e-4


def reason_against_joining(model: FoundModel, sample: Feeds | None) -> str:
    """Return why requests to a model must not be joined along its first axis; empty if they may.

    The axis must not be named after something else than samples, and two samples, from the data or else made up, must
    give together what each gives alone.
    """
    try:
        loaded = io.load(model.path)
        runner = truthful_runner(loaded, str(model.path), lean=True)
        named = next((axis for spec in runner.inputs if (axis := _first_axis(spec)) and _NO_BATCH.search(axis)), None)
        if named is not None:
            return f"its first axis is called {named}"
        pair = _two(runner, sample)
        if pair is None:
            return "the data hold no two samples of equal size to try it on"
        return _compared(runner, *pair, _SAME.get(model.facts.coarsest, _SAME_FP32))
    except MpdeployError as error:
        return f"two samples could not be tried: {error.what}"


def _first_axis(spec: TensorSpec) -> str:
    return str(spec.shape[0]) if spec.shape and isinstance(spec.shape[0], str) else ""


def _two(runner: Runner, sample: Feeds | None) -> tuple[Feed, Feed] | None:
    """Two different samples, each a batch of one."""
    if sample is None:
        return _made_up(runner, 1), _made_up(runner, 2)
    rows: list[Feed] = []
    for where, feed in itertools.islice(sample.labelled(), 2):
        fitted = fit(feed, runner.inputs, where).feed
        count = min((len(array) for array in fitted.values() if array.ndim), default=0)
        rows += [{name: array[i : i + 1] for name, array in fitted.items()} for i in {0, count - 1} if count]
    for one, other in itertools.combinations(rows, 2):
        alike = all(one[name].shape == other[name].shape for name in one)
        if alike and any(not np.array_equal(one[name], other[name]) for name in one):
            return one, other
    return None


def _made_up(runner: Runner, seed: int) -> Feed:
    random, feed = np.random.default_rng(seed), {}
    for spec in runner.inputs:
        sizes = [1, *(size if isinstance(size, int) else _OPEN for size in (spec.shape or ())[1:])]
        if spec.dtype == "string":
            feed[spec.name] = np.full(sizes, str(seed))
        elif "float" in spec.dtype:
            feed[spec.name] = random.standard_normal(sizes).astype(np.float32)
        else:
            feed[spec.name] = random.integers(0, 2, sizes)
    return fit(feed, runner.inputs, "made-up samples").feed


def _compared(runner: Runner, one: Feed, other: Feed, tolerance: float) -> str:
    joined = runner.run({name: np.concatenate([one[name], other[name]]) for name in one})
    for place, alone in enumerate((runner.run(one), runner.run(other))):
        for name, array in alone.items():
            both = joined[name]
            if not array.ndim or len(array) != 1 or both.shape != (2, *array.shape[1:]):
                return f"output {name} has not one row for each sample"
            if array.dtype.kind not in "fV":
                if not np.array_equal(both[place : place + 1], array):
                    return f"output {name} of a sample changes with its neighbour"
                continue
            ours, theirs = (x.astype(np.float64) for x in (both[place : place + 1], array))
            if not np.array_equal(ours, theirs, equal_nan=True):
                drift = np.linalg.norm(ours - theirs) / max(float(np.linalg.norm(theirs)), 1e-30)
                if not drift <= tolerance:
                    return f"output {name} of a sample changes with its neighbour (by {drift:.1e} of its norm)"
    return ""
