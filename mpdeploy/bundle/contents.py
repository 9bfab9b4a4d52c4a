"""What a folder holds that belongs into a release: recognised by content, not by name."""

from dataclasses import dataclass, field
from pathlib import Path

from mpdeploy import records
from mpdeploy.bundle.manifest import DriftVerdict
from mpdeploy.documents import parse_json
from mpdeploy.engine.loading import read_engine
from mpdeploy.engine.record import ENGINE_SUFFIXES, EngineRecord, sidecar_of
from mpdeploy.errors import UsageError
from mpdeploy.graph import io
from mpdeploy.report.record import Report
from mpdeploy.runtime.facts import ModelFacts, model_facts
from mpdeploy.verification.record import DriftReport

_OURS = "mpdeploy."
_COMPANIONS = (".html", ".svg")  # what lies beside a report's JSON and shows the same


@dataclass(frozen=True)
class FoundModel:
    """An ONNX model with all its files, and its plan if one lies beside it."""

    path: Path
    facts: ModelFacts
    weights: tuple[Path, ...]
    plan: Path | None


@dataclass(frozen=True)
class FoundEngine:
    """An engine whose bytes are those that its sidecar describes."""

    path: Path
    record: EngineRecord


@dataclass
class Contents:
    """Everything found.  ``verdicts`` are by the hashes of a model's files."""

    models: list[FoundModel] = field(default_factory=list)
    engines: list[FoundEngine] = field(default_factory=list)
    reports: list[Path] = field(default_factory=list)
    verdicts: dict[tuple[str, ...], DriftVerdict] = field(default_factory=dict)

    def verdict_on(self, facts: ModelFacts) -> DriftVerdict | None:
        """Return what was said of exactly these files."""
        return self.verdicts.get(hashes_of(facts))


def hashes_of(facts: ModelFacts) -> tuple[str, ...]:
    """Return the hashes of a model's files: what makes it the same model."""
    return tuple(file.sha256 for file in facts.files)


def gather(folder: Path) -> Contents:
    """Return what ``folder`` holds: ONNX models, their plans, engines with sidecars, drift and other reports.

    Raises ``UsageError`` if there is no model, or an engine or a report is damaged.
    """
    if not folder.is_dir():
        raise UsageError("there is no such folder", where=str(folder), remedy="give the folder that an export wrote")
    found = Contents()
    for path in sorted(folder.glob("*.onnx")):
        found.models.append(_model(path))
    for path in sorted(folder.glob("*.json")):
        if path.is_file():  # and no pipe, and no link to a device
            _sort_in(path, found)
    known = {engine.path for engine in found.engines}
    for path in sorted(folder.iterdir()):
        if path.suffix in ENGINE_SUFFIXES and path not in known:
            read_engine(path)  # says what is wrong with it: no release goes out without the engine that lies there
    if not found.models:
        raise UsageError("the folder holds no ONNX model", where=str(folder), remedy="run 'mpdeploy export' first")
    return found


def _model(path: Path) -> FoundModel:
    facts = model_facts(io.load(path), path)
    weights = tuple(path.parent / file.name for file in facts.files[1:])
    missing = [file for file in weights if not file.is_file()]
    if missing:
        raise UsageError(
            "weights of the model lie in another folder", where=str(path), remedy="save it with its weights beside it"
        )
    plan = path.with_name(f"{path.stem}.plan.json")
    return FoundModel(path, facts, weights, plan if plan.is_file() else None)


def _sort_in(path: Path, found: Contents) -> None:
    schema = _schema_of(path)
    if schema.startswith("mpdeploy.engine/"):
        engine = path.with_name(path.name.removesuffix(".json"))
        if engine.is_file() and sidecar_of(engine) == path:
            found.engines.append(FoundEngine(engine, read_engine(engine)))
    elif schema.startswith("mpdeploy.drift/"):
        _add_report(path, (records.load(DriftReport, path),), found)
    elif schema.startswith("mpdeploy.report/"):
        _add_report(path, records.load(Report, path).drifts, found)
    elif schema.startswith("mpdeploy.bench/"):
        _add_report(path, (), found)


def _add_report(path: Path, drifts: tuple[DriftReport, ...], found: Contents) -> None:
    found.reports.append(path)
    found.reports += [path.with_suffix(end) for end in _COMPANIONS if path.with_suffix(end).is_file()]
    for drift in drifts:
        verdict = DriftVerdict(drift.verdict.passed, drift.verdict.headline, path.name, drift.reference.files[0].sha256)
        known = found.verdicts.get(hashes_of(drift.candidate))
        # Of several reports on one model the worst counts.
        if known is None or known.passed:
            found.verdicts[hashes_of(drift.candidate)] = verdict


def _schema_of(path: Path) -> str:
    try:
        document = parse_json(path.read_bytes())
    except ValueError:
        return ""
    schema = document.get("schema", "") if isinstance(document, dict) else ""
    return schema if isinstance(schema, str) and schema.startswith(_OURS) else ""
