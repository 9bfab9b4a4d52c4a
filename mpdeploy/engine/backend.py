"""What mpdeploy asks of anything that makes engines.  A new back end implements this and joins ``backends.py``."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mpdeploy.engine.gpu import Gpu
from mpdeploy.engine.monitor import Progress
from mpdeploy.engine.network import Network
from mpdeploy.engine.options import BuildOptions
from mpdeploy.engine.target import Target


@dataclass(frozen=True)
class Inspection:
    """What a witness saw of a finished engine.

    ``counts``: how many outputs of its layers are in each format, None without a GPU that loads it.  ``doubt`` says
    why nothing was seen where there is such a GPU.
    """

    counts: dict[str, int] | None = None
    doubt: str = ""


class ParsedModel(Protocol):
    """A model that a back end has read and can build once."""

    @property
    def network(self) -> Network:
        """What the engine will compute, and in which types."""

    def build(self, options: BuildOptions, target: Target, progress: Progress | None, output: Path) -> None:
        """Write the engine to ``output``.  Raises ``BuildError`` if the builder gives none.

        ``progress`` may raise to stop.
        """

    def warnings(self) -> tuple[str, ...]:
        """Return what the back end has warned of so far, oldest first."""


class Backend(Protocol):
    """Makes engines of one kind."""

    @property
    def name(self) -> str:
        """The word that ``--backend`` takes."""

    @property
    def version(self) -> str:
        """The version of the library that builds."""

    def target(self, options: BuildOptions, gpus: Sequence[Gpu]) -> Target:
        """Return what the engine will be for; refuse what cannot work, before anything is read or built."""

    def parse(self, model: Path) -> AbstractContextManager[ParsedModel]:
        """Return a context whose value is the parsed model.

        Raises ``UsageError`` if the file is not an ONNX model, ``BuildError`` that names the node if this back
        end cannot take it: with a strongly typed parser that is a free check of the model's types.
        """

    def inspect(self, engine: bytes, target: Target) -> Inspection:
        """Return what can be seen of the finished engine; raise ``BuildError`` if it is none that loads."""
