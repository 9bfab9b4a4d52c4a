"""The sidecar: what an engine was built from, for and with, in a JSON file beside it."""

from dataclasses import dataclass
from pathlib import Path

from mpdeploy.engine.network import Census, Port
from mpdeploy.engine.options import BuildOptions
from mpdeploy.engine.spread import Spread
from mpdeploy.files import sha256_of
from mpdeploy.runtime.facts import FileFacts, ModelFacts

ENGINE_SUFFIXES = (".engine", ".plan", ".trt")  # of files that are engines and nothing else


@dataclass(frozen=True)
class DriftSummary:
    """The drift report on the model that an engine was built from: its file, its verdict in a sentence."""

    report: FileFacts
    passed: bool
    headline: str


@dataclass(frozen=True)
class EngineRecord:
    """Everything that must be known of an engine before it is loaded, and the proof of its precision.

    ``source`` is the ONNX model with the hashes of all its files, ``engine`` the engine's own file.
    ``capabilities`` are the compute capabilities it runs on (8.6 is 86), ``system`` the operating system and
    processor it was built on.  ``census`` counts layer outputs and weights by type, as the parser read them.
    ``expected`` is the format that the build was held to, None if none was demanded; ``plan`` the plan whose every
    value it was held to.  ``inspected`` counts the finished engine's layer outputs by format, where a GPU could load
    it.  ``drift`` is the verdict on the model, ``spread`` what building it several times showed.  ``reused``: the
    bytes come from the build cache.
    """

    tool_version: str
    backend: str
    backend_version: str
    source: ModelFacts
    engine: FileFacts
    capabilities: tuple[int, ...]
    gpu: str | None
    system: str
    options: BuildOptions
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    census: Census
    expected: str | None = None
    plan: FileFacts | None = None
    inspected: dict[str, int] | None = None
    drift: DriftSummary | None = None
    spread: Spread | None = None
    reused: bool = False
    warnings: tuple[str, ...] = ()
    schema: str = "mpdeploy.engine/1"


def file_facts(path: Path) -> FileFacts:
    """Return a file's name, size and hash."""
    return FileFacts(path.name, path.stat().st_size, sha256_of(path))


def sidecar_of(engine: Path) -> Path:
    """Return the path of an engine's sidecar: the engine's name with ``.json`` added."""
    return engine.parent / f"{engine.name}.json"
