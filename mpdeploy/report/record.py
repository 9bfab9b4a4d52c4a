"""What a report shows: one record, whatever renders it."""

from dataclasses import dataclass

from mpdeploy.verification.record import REPORT_SCHEMA, DriftReport


@dataclass(frozen=True)
class PlanRow:
    """One node that a plan decided on: its name, operator, format, and the code and text of the reason."""

    node: str
    op: str
    format: str
    code: str
    text: str


@dataclass(frozen=True)
class PlanTable:
    """The nodes of one candidate that stay in FP32, each with its reason."""

    candidate: str
    rows: tuple[PlanRow, ...]


@dataclass(frozen=True)
class WeightRow:
    """A stored tensor that lost more than ordinary rounding: who reads it, what became of its elements.

    ``norm_error`` is the norm of the error over that of the tensor.
    """

    name: str
    readers: str
    lost: str
    norm_error: float


@dataclass(frozen=True)
class WeightTable:
    """The weights of one candidate that lost more than ordinary rounding."""

    candidate: str
    rows: tuple[WeightRow, ...]


@dataclass(frozen=True)
class SamplePicture:
    """One of the worst samples, where the input is an image: its name, output, error, a PNG as data URI, its size."""

    sample: str
    output: str
    error: float | None
    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class EngineRow:
    """An engine that was built: its file, the model it came from, its size in bytes, what it runs on."""

    name: str
    source: str
    bytes: int
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Fact:
    """One line about the run as a whole: how the model was trained, say, or what it ran on."""

    label: str
    value: str


@dataclass(frozen=True)
class Report:
    """Candidates against their reference, and optionally how they came about and what was built of them.

    ``created`` is a UTC time in ISO 8601; ``commands`` reproduce the run, in ``environment``.
    """

    title: str
    created: str
    drifts: tuple[DriftReport, ...]
    facts: tuple[Fact, ...] = ()
    plans: tuple[PlanTable, ...] = ()
    engines: tuple[EngineRow, ...] = ()
    commands: tuple[str, ...] = ()
    weights: tuple[WeightTable, ...] = ()
    pictures: tuple[SamplePicture, ...] = ()
    environment: tuple[Fact, ...] = ()
    schema: str = REPORT_SCHEMA

    @property
    def passed(self) -> bool:
        """Whether every candidate passes."""
        return all(drift.verdict.passed for drift in self.drifts)


def report_of(drift: DriftReport, commands: tuple[str, ...] = ()) -> Report:
    """Return the report on a single comparison."""
    title = f"{_file_name(drift.candidate.path)} against {_file_name(drift.reference.path)}"
    return Report(title, drift.created, (drift,), commands=commands)


def _file_name(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]
