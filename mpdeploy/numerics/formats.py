"""The number formats, and every fact about them.  The only place that knows a format's numbers."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class FormatFacts:
    """One binary floating-point format: IEEE 754 binary32 and binary16, bfloat16, TF32, OCP FP8.

    ``precision`` counts the significand's bits with the implicit one.  ``max_exponent`` is the exponent of the
    largest finite number, ``min_exponent`` that of the smallest normal one.  ``max_significand`` is the
    significand of the largest finite number, in [1, 2).
    """

    bits: int
    precision: int
    max_exponent: int
    min_exponent: int
    max_significand: float
    has_infinity: bool = True


class Format(Enum):
    """A number format by the name that flags and plans use."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8E4M3 = "fp8e4m3"
    FP8E5M2 = "fp8e5m2"

    @property
    def facts(self) -> FormatFacts:
        """The format's defining numbers."""
        return _FACTS[self]

    @property
    def bits(self) -> int:
        """Bits that one element takes in memory (TF32 is stored in 32)."""
        return self.facts.bits

    @property
    def max(self) -> float:
        """The largest finite number."""
        return self.facts.max_significand * 2.0**self.facts.max_exponent

    @property
    def overflow_threshold(self) -> float:
        """Half-way between the largest finite number and what would come next: greater magnitudes overflow."""
        return self.max + 2.0 ** (self.facts.max_exponent - self.facts.precision)

    @property
    def threshold_overflows(self) -> bool:
        """Tell whether ``overflow_threshold`` itself overflows: a tie goes to the even significand."""
        return int(self.facts.max_significand * 2 ** (self.facts.precision - 1)) % 2 == 1

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number with full precision."""
        return 2.0**self.facts.min_exponent

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number."""
        return 2.0 ** (self.facts.min_exponent - self.facts.precision + 1)

    @property
    def eps(self) -> float:
        """The distance from 1 to the next larger number."""
        return 2.0 ** (1 - self.facts.precision)

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding a number in the normal range: half of ``eps``."""
        return self.eps / 2

    @property
    def max_exact_integer(self) -> int:
        """The largest n such that every integer in [-n, n] is exact."""
        return int(2**self.facts.precision)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype that stores the format; TF32 has none of its own and is stored as float32."""
        return _DTYPES[self]


_FACTS = {
    Format.FP32: FormatFacts(32, 24, 127, -126, 2 - 2.0**-23),
    Format.TF32: FormatFacts(32, 11, 127, -126, 2 - 2.0**-10),
    Format.FP16: FormatFacts(16, 11, 15, -14, 2 - 2.0**-10),
    Format.BF16: FormatFacts(16, 8, 127, -126, 2 - 2.0**-7),
    # OCP FP8 E4M3 spends its top code on NaN: the largest significand is 1.75 and there is no infinity.
    Format.FP8E4M3: FormatFacts(8, 4, 8, -6, 1.75, has_infinity=False),
    Format.FP8E5M2: FormatFacts(8, 3, 15, -14, 1.75),
}
_DTYPES: dict[Format, np.dtype[Any]] = {
    Format.FP32: np.dtype(np.float32),
    Format.TF32: np.dtype(np.float32),
    Format.FP16: np.dtype(np.float16),
    Format.BF16: np.dtype(ml_dtypes.bfloat16),
    Format.FP8E4M3: np.dtype(ml_dtypes.float8_e4m3fn),
    Format.FP8E5M2: np.dtype(ml_dtypes.float8_e5m2),
}

LOW_FORMATS = (Format.FP16, Format.BF16)
