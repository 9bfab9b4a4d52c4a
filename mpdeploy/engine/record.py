"""The sidecar: what an engine was built from, for and with, in a JSON file beside it."""

from dataclasses import dataclass
from pathlib import Path

from mpdeploy.engine.network import Census, Port
from mpdeploy.engine.options import BuildOptions
from mpdeploy.runtime.facts import FileFacts, ModelFacts


@dataclass(frozen=True)
class EngineRecord:
    """Everything that must be known of an engine before it is loaded, and the proof of its precision.

    ``source`` is the ONNX model with the hashes of all its files, ``engine`` the engine's own file.
    ``capabilities`` are the compute capabilities it runs on (8.6 is 86), ``system`` the operating system and
    processor it was built on.  ``census`` counts layer outputs and weights by type, as the parser read them.
    ``expected`` is the format that the build was held to, None if none was demanded.
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
    warnings: tuple[str, ...] = ()
    schema: str = "mpdeploy.engine/1"


def sidecar_of(engine: Path) -> Path:
    """Return the path of an engine's sidecar: the engine's name with ``.json`` added."""
    return engine.with_name(engine.name + ".json")
