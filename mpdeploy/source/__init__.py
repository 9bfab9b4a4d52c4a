"""From a model in any form to an FP32 ONNX model."""

from mpdeploy.source.check import ExportCheck as ExportCheck
from mpdeploy.source.check import check_export as check_export
from mpdeploy.source.export import export_fp32_onnx as export_fp32_onnx
from mpdeploy.source.kinds import Kind as Kind
from mpdeploy.source.kinds import kind_of as kind_of
from mpdeploy.source.loaded import Given as Given
from mpdeploy.source.loaded import LoadedModule as LoadedModule
from mpdeploy.source.loading import load_module as load_module
from mpdeploy.source.opening import open_source as open_source
from mpdeploy.source.ranges import RANGES as RANGES
from mpdeploy.source.ranges import measured_ranges as measured_ranges
from mpdeploy.source.ranges import write_ranges as write_ranges
