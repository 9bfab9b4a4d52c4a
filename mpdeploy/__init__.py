"""Train with mixed precision, convert to FP16/BF16 ONNX, build TensorRT engines, prove the accuracy drift."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpdeploy.api import train as train
    from mpdeploy.conversion.api import convert as convert
    from mpdeploy.engine.api import build as build
    from mpdeploy.pipeline.api import export as export
    from mpdeploy.searching.api import search as search
    from mpdeploy.session.model import load as load
    from mpdeploy.verification.api import verify as verify

__version__ = "0.1.0"

# Loaded on first use, so that `import mpdeploy` costs nothing.
_HOMES = {
    "build": "mpdeploy.engine.api",
    "convert": "mpdeploy.conversion.api",
    "export": "mpdeploy.pipeline.api",
    "load": "mpdeploy.session.model",
    "search": "mpdeploy.searching.api",
    "train": "mpdeploy.api",
    "verify": "mpdeploy.verification.api",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mpdeploy' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
