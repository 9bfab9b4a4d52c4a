"""The record by which training tells the export what values reached: `ranges.json` beside the FP32 ONNX file."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ValueRange:
    """What one value of the ONNX model reached in training: its finite bounds and where they were measured."""

    low: float
    high: float
    measured_at: str


@dataclass(frozen=True)
class MeasuredRanges:
    """Ranges of values of an ONNX model by their names, measured in training on held-out examples.

    ``model_sha256`` is the hash of the FP32 ONNX file that the names belong to.  ``unmatched`` names what was
    measured but is no value of that file, as when the exporter folds one module into another, and ``nonfinite``
    the modules that gave infinities or NaN, whose ranges prove nothing.
    """

    model_sha256: str
    recipe: str
    values: dict[str, ValueRange]
    unmatched: tuple[str, ...]
    nonfinite: tuple[str, ...]
    schema: str = "mpdeploy.ranges/1"

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """The (low, high) of each value by its name."""
        return {name: (value.low, value.high) for name, value in self.values.items()}
