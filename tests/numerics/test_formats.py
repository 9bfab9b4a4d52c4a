"""The table of formats, held to every bit pattern of each format and to what ml_dtypes and torch say."""

import ml_dtypes
import numpy as np
import pytest
import torch

from mpdeploy.numerics.formats import LOW_FORMATS, Format

TORCH = {
    Format.FP32: torch.float32,
    Format.FP16: torch.float16,
    Format.BF16: torch.bfloat16,
    Format.FP8E4M3: torch.float8_e4m3fn,
    Format.FP8E5M2: torch.float8_e5m2,
}
SMALL = (Format.FP16, Format.BF16, Format.FP8E4M3, Format.FP8E5M2)


def numbers(kind: Format) -> np.ndarray:
    """Every bit pattern of a format of at most 16 bits, as float64."""
    codes = np.arange(2**kind.bits, dtype=f"u{kind.bits // 8}")
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return codes.view(kind.dtype).astype(np.float64)


@pytest.mark.parametrize("kind", SMALL)
def test_facts_are_those_of_the_bit_patterns(kind):
    every = numbers(kind)
    finite = np.unique(every[np.isfinite(every)])
    positive = finite[finite > 0]
    assert kind.max == positive[-1] == -finite[0]
    assert kind.smallest_subnormal == positive[0]
    assert kind.eps == positive[positive > 1][0] - 1
    assert kind.facts.has_infinity == bool(np.isinf(every).any())
    # Below the smallest normal number the gaps stop shrinking.
    gaps = np.diff(positive)
    assert kind.smallest_normal == positive[np.flatnonzero(gaps > gaps[0])[0]] / 2
    integers = np.arange(1, kind.max_exact_integer + 2, dtype=np.float64)
    assert np.isin(integers[:-1], positive).all()
    assert integers[-1] not in positive


@pytest.mark.parametrize("kind", [Format.FP32, *SMALL])
def test_facts_are_those_of_ml_dtypes_and_torch(kind):
    theirs = ml_dtypes.finfo(kind.dtype)
    assert kind.bits == theirs.bits
    assert kind.facts.precision == theirs.nmant + 1
    assert (kind.max, kind.smallest_normal) == (float(theirs.max), float(theirs.smallest_normal))
    assert (kind.smallest_subnormal, kind.eps) == (float(theirs.smallest_subnormal), float(theirs.eps))
    torchs = torch.finfo(TORCH[kind])
    assert (kind.bits, kind.max, kind.eps) == (torchs.bits, torchs.max, torchs.eps)
    assert kind.smallest_normal == torchs.smallest_normal


def test_tf32_has_the_range_of_fp32_and_the_precision_of_fp16():
    tf32, fp32, fp16 = Format.TF32.facts, Format.FP32.facts, Format.FP16.facts
    assert (tf32.precision, tf32.max_significand) == (fp16.precision, fp16.max_significand)
    assert (tf32.max_exponent, tf32.min_exponent) == (fp32.max_exponent, fp32.min_exponent)
    assert Format.TF32.dtype == np.float32


@pytest.mark.parametrize("kind", SMALL)
def test_overflow_begins_at_the_threshold(kind):
    threshold = np.float32(kind.overflow_threshold)
    assert threshold == kind.overflow_threshold
    neighbours = [np.nextafter(threshold, np.float32(0)), threshold, np.nextafter(threshold, np.float32(np.inf))]
    with np.errstate(over="ignore"):
        overflows = [not np.isfinite(x.astype(kind.dtype).astype(np.float32)) for x in neighbours]
    assert overflows == [False, kind.threshold_overflows, True]
    # FP8 E4M3 alone keeps the tie: its largest significand is even.
    assert kind.threshold_overflows == (kind is not Format.FP8E4M3)


def test_half_an_ulp_is_the_unit_roundoff():
    for kind in Format:
        assert kind.unit_roundoff * 2 == kind.eps
    assert set(LOW_FORMATS) == {Format.FP16, Format.BF16}
