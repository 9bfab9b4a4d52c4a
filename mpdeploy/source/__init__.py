"""From a checkpoint to an FP32 ONNX model."""

from mpdeploy.source.export import ExportCheck as ExportCheck
from mpdeploy.source.export import check_export as check_export
from mpdeploy.source.export import export_fp32_onnx as export_fp32_onnx
from mpdeploy.source.loading import LoadedModule as LoadedModule
from mpdeploy.source.loading import load_module as load_module
from mpdeploy.source.ranges import RANGES as RANGES
from mpdeploy.source.ranges import measured_ranges as measured_ranges
from mpdeploy.source.ranges import write_ranges as write_ranges
