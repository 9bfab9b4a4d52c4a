"""The manifest of an export: every file that it wrote, with its hash."""

import re
from dataclasses import dataclass
from pathlib import Path

from mpdeploy import __version__, records
from mpdeploy.bundle.manifest import MANIFEST, BundleFile, Role
from mpdeploy.engine.record import sidecar_of
from mpdeploy.files import sha256_of
from mpdeploy.graph.io import files_of
from mpdeploy.pipeline.record import Exported
from mpdeploy.report.write import HTML, JSON
from mpdeploy.source.ranges import RANGES

_RECORDS = frozenset({MANIFEST, HTML, JSON, RANGES})
_MODELS = re.compile(r"model(\.[a-z0-9]+)?\.(onnx(\.[0-9a-f]{12}\.data)?|plan\.json|engine(\.json|\.kernels)?)")


def is_exported(name: str) -> bool:
    """Tell whether a file's name is one of those that exports write."""
    return name in _RECORDS or _MODELS.fullmatch(name) is not None


@dataclass(frozen=True)
class ExportManifest:
    """What an export wrote, by path inside its folder, and the SHA-256 of the file that it was made from.

    ``source_sha256`` is empty where the source is a folder.
    """

    source: str
    source_sha256: str
    files: tuple[BundleFile, ...]
    passed: bool
    tool: str = f"mpdeploy {__version__}"
    schema: str = "mpdeploy.export-manifest/1"


def write_manifest(
    folder: Path, source: Path, reference: Path, models: tuple[Exported, ...], others: tuple[Path, ...], *, passed: bool
) -> Path:
    """Write `manifest.json` into ``folder`` and return its path; ``others`` are reports and records."""
    roles: dict[Path, Role] = {}
    for model in (reference, *(Path(m.conversion.model) for m in models)):
        first, *weights = files_of(model)
        roles[first] = Role.MODEL
        roles |= dict.fromkeys(weights, Role.WEIGHTS)
    roles |= {Path(m.conversion.plan): Role.PLAN for m in models if m.conversion.plan}
    for engine in (Path(m.engine_path) for m in models if m.engine is not None):
        roles |= {engine: Role.ENGINE, sidecar_of(engine): Role.SIDECAR}
    roles |= dict.fromkeys((path for path in others if path.is_file()), Role.REPORT)
    files = tuple(
        BundleFile(path.relative_to(folder).as_posix(), role, path.stat().st_size, sha256_of(path))
        for path, role in sorted(roles.items())
    )
    target = folder / MANIFEST
    records.save(ExportManifest(source.name, sha256_of(source) if source.is_file() else "", files, passed), target)
    return target
