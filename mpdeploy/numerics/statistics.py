"""Streaming statistics of a tensor over any number of samples, in constant memory."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TensorStats:
    """What all samples so far said of one tensor.

    ``low`` and ``high`` bound its finite elements; ``smallest`` is its smallest non-zero magnitude (infinite if all
    were zero).  ``worst_sample`` is the index of the sample with the largest magnitude.  ``nan`` and ``infinite``
    count the samples in which such an element occurred.
    """

    low: float = math.inf
    high: float = -math.inf
    smallest: float = math.inf
    samples: int = 0
    worst_sample: int = 0
    nan: int = 0
    infinite: int = 0

    @property
    def absmax(self) -> float:
        """The largest finite magnitude; 0 if no finite element was seen."""
        return max(abs(self.low), abs(self.high)) if self.low <= self.high else 0.0

    def merged(self, sample: "TensorStats") -> "TensorStats":
        """Return the statistics of the samples of both, ``sample`` counted after those of ``self``."""
        worst = (
            self.worst_sample if self.absmax >= sample.absmax and self.samples else self.samples + sample.worst_sample
        )
        return TensorStats(
            min(self.low, sample.low),
            max(self.high, sample.high),
            min(self.smallest, sample.smallest),
            self.samples + sample.samples,
            worst,
            self.nan + sample.nan,
            self.infinite + sample.infinite,
        )


def stats_of(array: NDArray[Any]) -> TensorStats:
    """Return the statistics of one sample's array."""
    flat = np.asarray(array).ravel()
    if not flat.size:
        return TensorStats(samples=1)
    with np.errstate(invalid="ignore"):  # NaN is counted below
        low, high = float(flat.min()), float(flat.max())
    nan = infinite = 0
    if not (math.isfinite(low) and math.isfinite(high)):
        nan, infinite = int(np.isnan(flat).any()), int(np.isinf(flat).any())
        flat = flat[np.isfinite(flat)]
        low, high = float(flat.min(initial=math.inf)), float(flat.max(initial=-math.inf))
    magnitude = np.abs(flat)
    smallest = float(np.min(magnitude, where=magnitude > 0, initial=math.inf))
    return TensorStats(low, high, smallest, 1, 0, nan, infinite)
