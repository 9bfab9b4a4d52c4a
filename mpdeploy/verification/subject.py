"""One side of a comparison: the model's facts, what runs it, its plan if one lies beside it."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpdeploy import records
from mpdeploy.conversion.api import plan_path_of
from mpdeploy.errors import MpdeployError, UsageError
from mpdeploy.graph import io
from mpdeploy.graph.patience import limited
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.plan.target import target_named
from mpdeploy.runtime.choose import other_ways, truthful_runner
from mpdeploy.runtime.emulator import PLAIN, Arithmetic, EmulatorRunner
from mpdeploy.runtime.facts import ModelFacts, model_facts
from mpdeploy.runtime.runner import Runner


@dataclass(frozen=True)
class Subject:
    """A model under comparison.

    ``model`` is the graph, None for an engine; ``make`` makes what runs it, when that is first asked for; ``plan``
    is None for a model that mpdeploy did not convert; ``arithmetic`` is what the emulator was asked for; ``origin`` is
    the ONNX file that an engine was built from; one run of the model may take ``timeout`` seconds.
    """

    path: Path
    model: Any
    facts: ModelFacts
    make: Callable[[], Runner]
    plan: PrecisionPlan | None
    arithmetic: Arithmetic = PLAIN
    origin: Path | None = None
    timeout: float | None = None

    @functools.cached_property
    def runner(self) -> Runner:
        """What runs the model."""
        return self.make()

    def release(self) -> None:
        """Let the runner go; it is made again when it is asked for."""
        self.__dict__.pop("runner", None)

    @property
    def coarsest(self) -> Format:
        """The model's coarsest format."""
        return self.facts.coarsest

    def visible(self) -> "Subject":
        """Return what can be looked into: the model itself, or, for an engine, the one it was built from.

        An engine whose values are no outputs computes as it does in use, but does not show them.  Raises
        ``UsageError`` if there is no model to look into.
        """
        if self.model is not None:
            return self
        if self.origin is None or not self.origin.is_file():
            raise UsageError(
                "layer drift needs two ONNX models",
                where=str(self.path),
                remedy=f"put {self.origin}, which it was built from, back in its place" if self.origin else "export it",
            )
        return opened(self.origin, timeout=self.timeout)

    def other_ways(self) -> Iterator[tuple[str, Runner]]:
        """Yield other runs of the model (see ``runtime.choose.other_ways``)."""
        return iter(()) if self.model is None else other_ways(self.model, str(self.path))


def opened(path: Path, make: Callable[[], Runner] | None = None, *, timeout: float | None = None) -> Subject:
    """Return the ONNX model in a file, to be run by what ``make`` makes, or else truthfully.

    One run may take ``timeout`` seconds.  Faults as in ``graph.io.load``, and later the runner's.
    """
    model = limited(io.load(path), timeout)
    return Subject(
        path,
        model,
        model_facts(model, path),
        make or (lambda: truthful_runner(model, str(path))),
        plan_beside(path),
        timeout=timeout,
    )


def emulated(path: Path, arithmetic: Arithmetic, *, timeout: float | None = None) -> Subject:
    """Return the ONNX model in a file, run by the emulator in the arithmetic asked for."""
    model = limited(io.load(path), timeout)
    return Subject(
        path,
        model,
        model_facts(model, path),
        lambda: EmulatorRunner(model, str(path), arithmetic=arithmetic),
        plan_beside(path),
        arithmetic,
        timeout=timeout,
    )


def plan_beside(path: Path) -> PrecisionPlan | None:
    """Return the plan that lies beside a converted model; None if there is none that can be read."""
    where = plan_path_of(path)
    if not where.is_file():
        return None
    try:
        plan = records.load(PrecisionPlan, where)
        target_named(plan.target)  # one that a later version knows, or nobody
    except MpdeployError:
        return None
    return plan
