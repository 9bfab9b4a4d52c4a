"""One TensorRT that is installed here, and what it can do: asked of the module, never guessed from its version."""

import importlib
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mpdeploy.errors import DependencyError


class Flavour(Enum):
    """The two TensorRTs, by the name that ``--backend`` takes."""

    RTX = "rtx"
    TENSORRT = "tensorrt"

    @property
    def module(self) -> str:
        """The Python module's name."""
        return {Flavour.RTX: "tensorrt_rtx", Flavour.TENSORRT: "tensorrt"}[self]

    @property
    def title(self) -> str:
        """The product's name."""
        return {Flavour.RTX: "TensorRT for RTX", Flavour.TENSORRT: "TensorRT"}[self]


@dataclass(frozen=True)
class Toolkit:
    """An importable TensorRT.

    ``selectable`` holds the compute capabilities that a build can be aimed at; empty means that a build is
    always for the GPU of this machine, which it then needs.
    """

    flavour: Flavour
    module: Any
    version: str
    selectable: tuple[int, ...]

    @property
    def needs_gpu(self) -> bool:
        """Whether a build needs a GPU in this machine."""
        return not self.selectable

    @property
    def title(self) -> str:
        """Product and version for messages."""
        return f"{self.flavour.title} {self.version}"

    @property
    def network_flags(self) -> int:
        """Flags for ``create_network``: strongly typed, where the attribute exists.

        TensorRT 10 must be told; 11 and RTX know nothing else and ignore it.
        """
        flags = self.module.NetworkDefinitionCreationFlag
        return 1 << int(flags.STRONGLY_TYPED) if hasattr(flags, "STRONGLY_TYPED") else 0


def load_toolkit(flavour: Flavour) -> Toolkit:
    """Return the installed TensorRT of this flavour; ``DependencyError`` that names the extra where it is missing."""
    try:
        module = importlib.import_module(flavour.module)
    except ImportError as error:
        raise DependencyError(
            f"{flavour.title} is not installed",
            where=str(error),
            remedy=f"pip install 'mpdeploy[{flavour.value}]'",
        ) from error
    return Toolkit(flavour, module, module.__version__, _selectable(module))


def _selectable(module: Any) -> tuple[int, ...]:
    if not hasattr(module, "ComputeCapability") or not hasattr(module.IBuilderConfig, "num_compute_capabilities"):
        return ()
    names = module.ComputeCapability.__members__
    return tuple(sorted(int(name.removeprefix("SM")) for name in names if name.startswith("SM")))
