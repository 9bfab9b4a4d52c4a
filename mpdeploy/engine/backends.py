"""The back ends there are, by the name that ``--backend`` takes."""

from mpdeploy.engine.backend import Backend
from mpdeploy.engine.isolated import IsolatedBackend
from mpdeploy.engine.tensorrt import TensorRtBackend
from mpdeploy.engine.toolkit import Flavour, load_toolkit
from mpdeploy.errors import UsageError

BACKEND_NAMES = tuple(flavour.value for flavour in Flavour)


def find_backend(name: str) -> Backend:
    """Return the back end called ``name``; it parses and builds each model in a process of its own.

    Faults as for ``backend_here``.
    """
    return IsolatedBackend(backend_here(name))


def backend_here(name: str) -> Backend:
    """Return the back end called ``name``, at work in this process.

    Raises ``UsageError`` if there is none of that name, ``DependencyError`` if its library is not installed.
    """
    if name not in BACKEND_NAMES:
        raise UsageError(
            f"there is no engine back end {name!r}", where="--backend", remedy=f"choose from {', '.join(BACKEND_NAMES)}"
        )
    return TensorRtBackend(load_toolkit(Flavour(name)))
