"""The manifest: every file of a bundle with its hash, and where each one comes from."""

from dataclasses import dataclass
from enum import Enum

_LONGEST = 100  # characters of a name: with what is added to it, any file system takes it

MANIFEST, DIGEST, SIGNATURE = "manifest.json", "manifest.sha256", "manifest.sig"


class Role(Enum):
    """What a file is there for."""

    MODEL = "model"
    WEIGHTS = "weights"
    PLAN = "plan"
    ENGINE = "engine"
    SIDECAR = "sidecar"
    REPORT = "report"
    SAMPLE = "sample"
    LICENCE = "licence"
    SERVING = "serving"


# Where the files of each role lie in a bundle.
FOLDERS = {
    Role.MODEL: "models",
    Role.WEIGHTS: "models",
    Role.PLAN: "models",
    Role.ENGINE: "engines",
    Role.SIDECAR: "engines",
    Role.REPORT: "reports",
    Role.LICENCE: "licences",
}


def is_name(word: str) -> bool:
    """Tell whether a word can be the name or version of a release: versions become names of folders."""
    return (
        0 < len(word) <= _LONGEST
        and word[0].isalnum()
        and word[-1] != "."
        and all(c.isalnum() or c in "._-" for c in word)
    )


def is_inside(path: str) -> bool:
    """Tell whether a file's path stays in its bundle, on any operating system."""
    parts = path.split("/")
    return not any(part in ("", ".", "..") or "\0" in part or "\\" in part or ":" in part for part in parts)


@dataclass(frozen=True)
class BundleFile:
    """A file by its path inside the bundle (with ``/``), its size in bytes, the SHA-256 of its content."""

    path: str
    role: Role
    bytes: int
    sha256: str


@dataclass(frozen=True)
class TrainingFacts:
    """The training run behind the models: the checkpoint's hash and what its record says."""

    checkpoint_sha256: str
    recipe: str
    recipe_sha256: str
    level: str
    seed: int
    epochs: int
    metric_name: str
    metric: float | None
    steps_applied: int
    steps_skipped: int
    torch_version: str
    mpdeploy_version: str


@dataclass(frozen=True)
class DriftVerdict:
    """What verification said of a model: the verdict, the report that says it, the SHA-256 of the reference."""

    passed: bool
    headline: str
    report: str
    reference_sha256: str


@dataclass(frozen=True)
class BundledModel:
    """An ONNX model: its path, the coarsest format it computes in, its plan (empty if none), its verdict if it has one.

    An FP32 model needs none.
    """

    path: str
    format: str
    plan: str
    verdict: DriftVerdict | None


@dataclass(frozen=True)
class BundledEngine:
    """An engine: its path, the model in the bundle that it was built from, what built it, where it runs."""

    path: str
    model: str
    backend: str
    backend_version: str
    capabilities: tuple[int, ...]


@dataclass(frozen=True)
class Manifest:
    """A release.  ``passed`` if every model and engine in it may be shipped, ``reasons`` say why not.

    ``created`` is a UTC time in ISO 8601.  ``notes`` tell what was left out and why.
    """

    name: str
    version: str
    created: str
    tool: str
    files: tuple[BundleFile, ...]
    training: TrainingFacts | None
    models: tuple[BundledModel, ...]
    engines: tuple[BundledEngine, ...]
    passed: bool
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    schema: str = "mpdeploy.manifest/1"
