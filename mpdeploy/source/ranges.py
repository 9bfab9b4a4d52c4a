"""The bridge from training to the precision plan: measured ranges under the names of the ONNX model's values."""

from pathlib import Path

from mpdeploy import records
from mpdeploy.files import sha256_of
from mpdeploy.numerics.handover import MeasuredRanges, ValueRange
from mpdeploy.numerics.telemetry import ModuleRange
from mpdeploy.source.loading import LoadedModule
from mpdeploy.source.matching import match

RANGES = "ranges.json"


def measured_ranges(loaded: LoadedModule, onnx: Path) -> MeasuredRanges:
    """Return what training measured, as ranges of values of the FP32 ONNX file exported from ``loaded``.

    There are none where the model does not come from a training of ours.
    """
    record = loaded.record
    measured = {(item.module, item.index): item for item in (record.ranges if record else ())}
    values, matched = {}, set()
    for name, outputs in match(loaded, onnx).items() if measured else ():
        matched.update(outputs)
        # Equal numbers wherever they were measured; the innermost module has seen the fewest other calls.
        item = measured.get(outputs[-1])
        if item is not None and item.low is not None and item.high is not None and not item.nonfinite:
            values[name] = ValueRange(item.low, item.high, _place(item))
    return MeasuredRanges(
        model_sha256=sha256_of(onnx),
        recipe=record.recipe.file if record else "",
        values=values,
        unmatched=tuple(_place(item) for output, item in measured.items() if output not in matched),
        nonfinite=tuple(_place(item) for item in measured.values() if item.nonfinite),
    )


def write_ranges(loaded: LoadedModule, onnx: Path) -> Path:
    """Write `ranges.json` beside the FP32 ONNX file and return its path."""
    path = onnx.with_name(RANGES)
    records.save(measured_ranges(loaded, onnx), path)
    return path


def _place(item: ModuleRange) -> str:
    name = item.module or "(the model)"
    return f"{name}[{item.index}]" if item.index else name
