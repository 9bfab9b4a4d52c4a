"""Records of what a training measured about its numbers: one line of JSON for each step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shares:
    """How a layer's gradients fit a number format, each a share of its elements from 0 to 1.

    ``zero``: are zero or round to it.  ``subnormal``: keep fewer bits.  ``overflow``: become infinite, or are not
    finite already.
    """

    zero: float
    subnormal: float
    overflow: float


@dataclass(frozen=True)
class LayerGradients:
    """One layer's gradients at one step: as the loss scale made them, and as they would be without it."""

    name: str
    elements: int
    with_scale: Shares
    without_scale: Shares


@dataclass(frozen=True)
class ModuleRange:
    """What a module's output reached over ``calls`` calls.

    ``index`` counts the tensors of an output that is a tuple.  ``low`` and ``high`` bound the calls whose elements
    were all finite; ``nonfinite`` counts the other ones.  ``rank`` is the tensor's number of axes.
    """

    module: str
    index: int
    rank: int
    low: float | None
    high: float | None
    calls: int
    nonfinite: int = 0


@dataclass(frozen=True)
class Sample:
    """A close look at one step, from samples of its gradients and all of its activations.

    ``exponents[i]`` is the share of the unscaled, non-zero gradient elements with a magnitude in
    [2^(lowest + i), 2^(lowest + i + 1)); the first and last bins also hold what lies beyond.
    """

    layers: tuple[LayerGradients, ...]
    lowest: int
    exponents: tuple[float, ...]
    activations: tuple[ModuleRange, ...]


@dataclass(frozen=True)
class StepLine:
    """One step: its mean loss, unscaled gradient norm, loss scale before and after, skips so far and in a row.

    ``loss`` and ``grad_norm`` are None where they are not finite.  ``learning_rate`` is that of the optimizer's first
    group in this step, None where nobody told it.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    scale_before: float
    scale_after: float
    skipped: bool
    skips: int
    streak: int
    sample: Sample | None = None
    learning_rate: float | None = None


@dataclass(frozen=True)
class TelemetryHeader:
    """The first line: what was trained how.  ``format`` is the one that gradients are held against."""

    name: str
    configuration: str
    format: str
    interval: int
    schema: str = "mpdeploy.telemetry/2"
