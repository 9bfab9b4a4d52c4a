"""``verify``: does the candidate compute what its reference computes?"""

import time
from datetime import UTC, datetime
from pathlib import Path

import mpdeploy
from mpdeploy.graph import io
from mpdeploy.numerics.formats import Format
from mpdeploy.runtime.choose import truthful_runner
from mpdeploy.runtime.facts import ModelFacts, model_facts
from mpdeploy.runtime.feeds import Feeds
from mpdeploy.runtime.runner import Runner
from mpdeploy.verify.budget import Budget, default_budget
from mpdeploy.verify.compare import compare
from mpdeploy.verify.record import DataFacts, DriftReport
from mpdeploy.verify.verdict import judge


def verify(reference: Path, candidate: Path, feeds: Feeds, budget: Budget | None = None) -> DriftReport:
    """Return how far the ONNX model ``candidate`` drifts from ``reference`` on the feeds, and the verdict.

    A model with FP16 or BF16 tensors runs under true rounding (see ``mpdeploy.runtime.emulator``).  Without a
    ``budget`` the default for the candidate's format counts.  Raises ``UsageError`` for bad files or data,
    ``ModelError`` for models that cannot run.
    """
    started, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    reference_runner, reference_facts = _prepare(reference)
    candidate_runner, candidate_facts = _prepare(candidate)
    coarsest = candidate_facts.coarsest
    measured = compare(reference_runner, candidate_runner, feeds, coarsest.unit_roundoff)
    notes = list(measured.notes)
    if reference_facts.coarsest is not Format.FP32:
        notes.append(f"the reference itself holds {reference_facts.coarsest.value} tensors: it is no FP32 baseline")
    budget = budget or default_budget(coarsest, measured.outputs)
    return DriftReport(
        reference=reference_facts,
        candidate=candidate_facts,
        data=DataFacts(feeds.name, measured.feeds, measured.samples, feeds.sha256()),
        reference_run=reference_runner.describe(),
        candidate_run=candidate_runner.describe(),
        outputs=measured.outputs,
        budget=budget,
        verdict=judge(measured.outputs, measured.missing, budget, candidate_runner.describe()),
        notes=tuple(notes),
        created=created,
        seconds=round(time.monotonic() - started, 3),
        tool=f"mpdeploy {mpdeploy.__version__}",
    )


def _prepare(path: Path) -> tuple[Runner, ModelFacts]:
    model = io.load(path)
    return truthful_runner(model, str(path)), model_facts(model, path)
