"""From a model in any form to an FP32 ONNX model."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpdeploy.source.check import ExportCheck as ExportCheck
    from mpdeploy.source.check import check_export as check_export
    from mpdeploy.source.export import export_fp32_onnx as export_fp32_onnx
    from mpdeploy.source.given import Given as Given
    from mpdeploy.source.kinds import Kind as Kind
    from mpdeploy.source.kinds import kind_of as kind_of
    from mpdeploy.source.loaded import LoadedModule as LoadedModule
    from mpdeploy.source.loading import load_module as load_module
    from mpdeploy.source.opening import open_source as open_source
    from mpdeploy.source.ranges import RANGES as RANGES
    from mpdeploy.source.ranges import measured_ranges as measured_ranges
    from mpdeploy.source.ranges import write_ranges as write_ranges

# Loaded on first use: what a user says of a model is known to rooms that must not wait for torch.
_HOMES = {
    "ExportCheck": "check",
    "Given": "given",
    "Kind": "kinds",
    "LoadedModule": "loaded",
    "RANGES": "ranges",
    "check_export": "check",
    "export_fp32_onnx": "export",
    "kind_of": "kinds",
    "load_module": "loading",
    "measured_ranges": "ranges",
    "open_source": "opening",
    "write_ranges": "ranges",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mpdeploy.source' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mpdeploy.source.{_HOMES[name]}"), name)
