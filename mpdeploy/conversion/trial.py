"""A plan that was made from data is tried on it: carried out, run under true rounding, held to the default budget.

The budget is the one that verification takes if the user names none, so that what passes here passes there.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from mpdeploy.conversion.apply import apply
from mpdeploy.graph.names import Names
from mpdeploy.graph.traits import Kind, kind_of
from mpdeploy.numerics.budget import Budget
from mpdeploy.numerics.default_budget import default_budget
from mpdeploy.numerics.drift import OutputDrift
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.judging import Check, absolute_faults, checks_of, over
from mpdeploy.plan.groups import ONNX_TYPE, is_constant
from mpdeploy.plan.planner import Planned, bind
from mpdeploy.plan.record import Trial
from mpdeploy.runtime.choose import truthful_runner
from mpdeploy.runtime.compare import Comparison, compare
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.fit import fit
from mpdeploy.runtime.remembered import Remembered
from mpdeploy.runtime.runner import Feed, Runner
from mpdeploy.runtime.slices import slices

SECONDS = 100.0  # as many feeds are judged as the FP32 model runs in this time
_TOLERANCE = {Format.FP16: 0.01, Format.BF16: 0.04}  # of an output's largest magnitude
_FAULT = 1e6  # stands for a fault that no limit measures


@dataclass(frozen=True)
class Judged:
    """What one plan came to: the drift of its outputs, and every limit of the default budget held to them."""

    found: Comparison
    budget: Budget
    checks: tuple[Check, ...]
    low: Format

    @property
    def broken(self) -> bool:
        """Whether an output is NaN or infinite where the source's is finite."""
        return any(output.broken for output in self.found.outputs)

    @property
    def allowance(self) -> float:
        """The largest share of a limit's allowance that is used."""
        return max((math.inf if check.used is None else check.used for check in self.checks), default=0.0)

    @property
    def used(self) -> float:
        """The same, faults that no limit measures counted: over 1, the plan is over budget."""
        return max([self.allowance, *(_fault(output) for output in self.found.outputs)])

    @property
    def peak(self) -> float:
        """The largest error of an element over its output's largest magnitude, over what rounding explains."""
        return max((_peak(output) for output in self.found.outputs), default=0.0) / _TOLERANCE[self.low]

    @property
    def badness(self) -> float:
        """What a repair makes smaller; at most 1 where nothing is left to be repaired."""
        return max(self.used, self.peak)

    @property
    def worst(self) -> tuple[str, int | None]:
        """The feed with the largest error, and the row in it if it holds several samples; empty if there is none."""
        samples = [s for output in self.found.outputs for s in output.worst_samples]
        if not samples:
            return "", None
        worst = max(samples, key=lambda s: math.inf if s.error is None else s.error)
        return worst.feed, worst.row

    @property
    def text(self) -> str:
        """What stands against the plan, in words; empty if nothing does."""
        faults = [reason for output in self.found.outputs if _fault(output) for reason in absolute_faults(output)]
        reasons = [*faults, *(over(check) for check in self.checks if not check.holds)]
        if not reasons:
            return ""
        more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
        return f"{reasons[0].text}{more}"

    def record(self, given: int | None) -> Trial:
        """Return this as part of a plan; ``given`` is the number of feeds that there are."""
        used, found = self.used, self.found
        return Trial(
            within=used <= 1,
            text=self.text or "every output is within budget",
            budget=f"{self.budget.origin}: {self.budget}",
            used=used if math.isfinite(used) else None,
            drift=found.error,
            feed=self.worst[0],
            feeds=found.feeds,
            samples=found.samples,
            given=given,
        )


def _fault(output: OutputDrift) -> float:
    if output.broken:
        return math.inf
    return _FAULT if output.moved or output.shape_fault or output.collapsed or output.frozen else 0.0


def _peak(output: OutputDrift) -> float:
    if output.broken:
        return math.inf
    if output.shape_fault or output.exact:
        return float(bool(output.shape_fault) or output.match < 1)
    if not output.max_abs or not output.reference_largest:
        return float(bool(output.max_abs))
    return output.max_abs / output.reference_largest


class Judge:
    """Tries plans for one model on one set of feeds; ``where`` names the model in errors."""

    def __init__(self, model: ir.Model, low: Format, feeds: Feeds, where: str) -> None:
        self.model, self.low, self.where = model, low, where
        self._reference = Remembered(lambda: truthful_runner(model, where, lean=True))
        self.given = feeds.count
        self.feeds = feeds.first(self._run_reference(feeds))
        if self._reference.whole:
            self._reference.release()  # its weights are in memory only once at a time

    def _run_reference(self, feeds: Feeds) -> int:
        """Run the source until all feeds or the time are used up; return how many feeds it was."""
        until, count = time.monotonic() + SECONDS, 0
        for name, feed in feeds.labelled():
            for _, part in slices(feed, self._reference.inputs):
                self._reference.run(fit(part, self._reference.inputs, name).feed)
            count += 1
            if time.monotonic() > until:
                break
        return count

    def of(self, planned: Planned, names: tuple[str, ...] = ()) -> Judged:
        """Return what a plan comes to on the feeds of these names, or on all."""
        return self._judged(truthful_runner(carried_out(self.model, planned), self.where, lean=True), names)

    def of_weights(self, planned: Planned, names: tuple[str, ...] = ()) -> Judged:
        """Return what it comes to in FP32 arithmetic with nothing rounded but the weights of a plan's low products."""
        bound = bind(copy_of(self.model), planned.plan)
        return self._judged(truthful_runner(_with_rounded_weights(bound), self.where, lean=True), names)

    def repeats(self, names: tuple[str, ...]) -> bool:
        """Tell whether the source gives the same numbers when it runs again: one that draws random ones does not."""
        runner = truthful_runner(self.model, self.where, lean=True)
        # The first draw of a new session may well be that of the session before.
        return all(self._judged(runner, names).used <= 1 for _ in range(2))

    def feed(self, name: str, row: int | None) -> Feed:
        """Return one feed as the model takes it, the first without a name; of many samples the part with the row."""
        where, whole = next((self.feeds.among([name]) if name else self.feeds).labelled())
        inputs = self._reference.inputs
        parts = [part for first, part in slices(whole, inputs) if first <= (row or 0)]
        return fit(parts[-1], inputs, where).feed

    def _judged(self, runner: Runner, names: tuple[str, ...]) -> Judged:
        feeds = self.feeds.among(names) if names else self.feeds
        found = compare(self._reference, runner, feeds, self.low)
        budget = default_budget(self.low, found.outputs)
        return Judged(found, budget, tuple(checks_of(found.outputs, budget)), self.low)


def copy_of(model: ir.Model) -> ir.Model:
    """Return a copy whose graph may be changed; large tensors are shared."""
    copy = model.clone()
    copy.meta.update(model.meta)
    return copy


def carried_out(model: ir.Model, planned: Planned) -> ir.Model:
    """Return the model that a plan makes of its source, which stays as it is."""
    return apply(bind(copy_of(model), planned.plan))


def distance(reference: NDArray[Any], candidate: NDArray[Any]) -> float:
    """Return max|r - c| over max|r|; infinite if the candidate breaks where the reference is finite.

    Integers are right or wrong: 0 or 1.  So are shapes that depend on the data.
    """
    if reference.shape != candidate.shape:
        return 1.0
    if reference.dtype.kind != "f":
        return 0.0 if np.array_equal(reference, candidate) else 1.0
    r, c = reference.astype(np.float64), candidate.astype(np.float64)
    finite = np.isfinite(r)
    if not np.isfinite(c[finite]).all():
        return float("inf")
    size = np.abs(r[finite]).max(initial=0.0)
    error = np.abs(np.subtract(r, c, where=finite, out=np.zeros_like(r))).max(initial=0.0)
    return float(error / size) if size > 0 else float(error > 0)


def _with_rounded_weights(planned: Planned) -> ir.Model:
    """Put the constants that low products read through a pair of Casts; all arithmetic stays FP32.

    What other operators read may stay FP32 at no price worth speaking of.
    """
    model, names, low = planned.model, Names(planned.model), ONNX_TYPE[planned.plan.precision]
    for group, is_low in zip(planned.groups.all, planned.low, strict=True):
        for operand in group.consumes if is_low and kind_of(group.node) is Kind.HEAVY else ():
            if is_constant(operand.value) and isinstance(operand.user, ir.Node):
                last = operand.value
                for node in _pair(last, low, names):
                    operand.user.prepend(node)
                    last = node.outputs[0]
                operand.user.replace_input_with(operand.index, last)
    return model


def _pair(value: ir.Value, low: ir.DataType, names: Names) -> Iterator[ir.Node]:
    source = value
    for dtype in (low, ir.DataType.FLOAT):
        name = names.fresh(f"{value.name}_rounded")
        node = ir.node("Cast", [source], {"to": int(dtype)}, name=names.fresh_node(name))
        source = node.outputs[0]
        source.name, source.type, source.shape = name, ir.TensorType(dtype), value.shape
        yield node
