"""One side of a comparison: the model's facts, what runs it, its plan if one lies beside it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpdeploy import records
from mpdeploy.conversion.api import plan_path_of
from mpdeploy.errors import MpdeployError
from mpdeploy.graph import io
from mpdeploy.numerics.formats import Format
from mpdeploy.plan.record import PrecisionPlan
from mpdeploy.runtime.choose import other_ways, truthful_runner
from mpdeploy.runtime.emulator import PLAIN, Arithmetic, EmulatorRunner
from mpdeploy.runtime.facts import ModelFacts, model_facts
from mpdeploy.runtime.runner import Runner


@dataclass(frozen=True)
class Subject:
    """A model under comparison.

    ``model`` is the graph, None for an engine; ``plan`` is None for a model that mpdeploy did not convert;
    ``arithmetic`` is what the emulator was asked for.
    """

    path: Path
    model: Any
    facts: ModelFacts
    runner: Runner
    plan: PrecisionPlan | None
    arithmetic: Arithmetic = PLAIN

    @property
    def coarsest(self) -> Format:
        """The model's coarsest format."""
        return self.facts.coarsest

    def other_ways(self) -> Iterator[tuple[str, Runner]]:
        """Yield other runs of the model (see ``runtime.choose.other_ways``)."""
        return other_ways(self.model, str(self.path))


def opened(path: Path, runner: Runner | None = None) -> Subject:
    """Return the ONNX model in a file, ready to run: by ``runner``, or else truthfully.

    Faults as in ``graph.io.load`` and the runner's.
    """
    model = io.load(path)
    ready = runner or truthful_runner(model, str(path))
    return Subject(path, model, model_facts(model, path), ready, plan_beside(path))


def emulated(path: Path, arithmetic: Arithmetic) -> Subject:
    """Return the ONNX model in a file, run by the emulator in the arithmetic asked for."""
    model = io.load(path)
    runner = EmulatorRunner(model, str(path), arithmetic=arithmetic)
    return Subject(path, model, model_facts(model, path), runner, plan_beside(path), arithmetic)


def plan_beside(path: Path) -> PrecisionPlan | None:
    """Return the plan that lies beside a converted model; None if there is none that can be read."""
    where = plan_path_of(path)
    try:
        return records.load(PrecisionPlan, where) if where.is_file() else None
    except MpdeployError:
        return None
