"""Casts and loss accounts, held to exact rational arithmetic, to ml_dtypes and to torch."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.rounding import Loss, LossMeter, cast, loss_of, rounded

NARROW = (Format.TF32, Format.FP16, Format.BF16, Format.FP8E4M3, Format.FP8E5M2)
formats = st.sampled_from(NARROW)


def nearest(x: float, kind: Format) -> float:
    """Round one number to the nearest of the format, ties to even, in exact arithmetic."""
    if x == 0 or not math.isfinite(x):
        return x if kind.facts.has_infinity or not math.isinf(x) else math.nan
    exponent = max(math.frexp(x)[1] - 1, kind.facts.min_exponent)
    quantum = Fraction(2) ** (exponent - kind.facts.precision + 1)
    result = round(Fraction(x) / quantum) * quantum  # round() of a fraction goes to even
    if abs(result) > Fraction(kind.max):
        return math.copysign(math.inf, x) if kind.facts.has_infinity else math.nan
    return math.copysign(float(result), x)


def same(a, b) -> bool:
    """Equal, bit for bit but for the payload of NaN."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(
        np.signbit(a)[~np.isnan(a)], np.signbit(b)[~np.isnan(b)]
    )


@st.composite
def around(draw, kind, width):
    """A number of the format, or a tie between two of them, or a neighbour of either, in float32 or float64."""
    float_type = {32: np.float32, 64: np.float64}[width]
    low = kind.facts.min_exponent - kind.facts.precision - 2
    exponent = draw(st.integers(low, kind.facts.max_exponent + 1))
    quantum = max(exponent, kind.facts.min_exponent) - kind.facts.precision + 1
    halves = draw(st.integers(0, 2 ** (kind.facts.precision + 1)))
    with np.errstate(over="ignore", under="ignore"):
        x = float_type(math.ldexp(float(halves), quantum - 1)) if quantum < 1000 else float_type(np.inf)
        towards = draw(st.sampled_from([None, 0.0, np.inf]))
        x = x if towards is None else np.nextafter(x, float_type(towards))
    return float(x) * draw(st.sampled_from([1, -1]))


@st.composite
def cases(draw, widths=(32, 64)):
    """A format, and an array with subnormals, ties, overflow, NaN, infinities and signed zeros."""
    kind, width = draw(formats), draw(st.sampled_from(widths))
    one = st.one_of(
        around(kind, width),
        st.floats(width=width),
        st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, kind.overflow_threshold, -kind.overflow_threshold]),
    )
    # Squares of numbers below 1e-150 are zero in float64, and so would be their norm.
    items = [x if not 0 < abs(x) < 1e-150 else 0.0 for x in draw(st.lists(one, max_size=12))]
    return kind, np.array(items, np.float32 if width == 32 else np.float64)


@given(cases())
def test_cast_rounds_to_nearest_even(case):
    kind, array = case
    result = cast(array, kind)
    assert result.dtype == kind.dtype
    assert same(result, [nearest(x, kind) for x in array.tolist()])


@given(cases(widths=(32,)))
def test_cast_is_that_of_torch(case):
    kind, array = case
    names = {Format.FP16: torch.float16, Format.BF16: torch.bfloat16, Format.FP8E5M2: torch.float8_e5m2}
    if kind in names:
        theirs = torch.from_numpy(array).to(names[kind]).to(torch.float64).numpy()
        assert same(cast(array, kind), theirs)
    elif kind is Format.FP8E4M3:  # torch saturates where the format has only NaN
        inside = array[np.abs(array) <= kind.overflow_threshold]
        theirs = torch.from_numpy(inside).to(torch.float8_e4m3fn).to(torch.float64).numpy()
        assert same(cast(inside, kind), theirs)


@pytest.mark.parametrize("kind", [Format.FP16, Format.BF16, Format.FP8E4M3, Format.FP8E5M2])
def test_every_number_of_a_format_stays_itself(kind):
    codes = np.arange(2**kind.bits, dtype=f"u{kind.bits // 8}").view(kind.dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        every = codes.astype(np.float32)
        back = rounded(every, kind), rounded(every.astype(np.float64), kind)
        assert same(back[0], every)
        assert same(back[1], every)


def test_float64_is_rounded_once():
    for kind in NARROW:
        just_over_a_tie = np.array([1 + kind.eps / 2 + 2.0**-50, -1 - kind.eps / 2 - 2.0**-50])
        assert cast(just_over_a_tie, kind).astype(np.float64).tolist() == [1 + kind.eps, -1 - kind.eps]


def test_cast_returns_a_new_array_and_keeps_the_shape():
    array = np.ones((2, 0, 3), np.float32)
    assert cast(array, Format.TF32).shape == (2, 0, 3)
    assert cast(np.float32(3).reshape(()), Format.BF16).shape == ()
    original = np.array([1.0, 65520.0], np.float32)
    cast(original, Format.FP32)[0] = 7
    cast(original, Format.TF32)[0] = 7
    assert original.tolist() == [1.0, 65520.0]


def account(array: np.ndarray, kind: Format) -> Loss:
    """The loss of an array, counted element by element in exact arithmetic."""
    finite = [x for x in array.astype(np.float64).tolist() if math.isfinite(x)]
    pairs = [(x, nearest(x, kind)) for x in finite]
    kept = [(x, y) for x, y in pairs if math.isfinite(y)]
    power = sum(Fraction(x) ** 2 for x, _ in kept)
    error = sum((Fraction(x) - Fraction(y)) ** 2 for x, y in kept)
    small = [(x, y) for x, y in kept if 0 < abs(x) < kind.smallest_normal]
    return Loss(
        target=kind,
        size=array.size,
        absmax=max(map(abs, finite), default=0.0),
        smallest=min((abs(x) for x, _ in kept if x), default=0.0),
        overflowed=len(pairs) - len(kept),
        vanished=sum(y == 0 for _, y in small),
        negative_vanished=sum(y == 0 and x < 0 for x, y in small),
        subnormal=sum(y != 0 for _, y in small),
        norm_error=math.sqrt(error / power) if power else 0.0,
        worst_relative=max(
            (float(abs(Fraction(y) - Fraction(x)) / abs(Fraction(x))) for x, y in kept if x), default=0.0
        ),
    )


def agree(a: Loss, b: Loss) -> None:
    for name in ("target", "size", "absmax", "overflowed", "vanished", "negative_vanished", "subnormal", "smallest"):
        assert getattr(a, name) == getattr(b, name), name
    assert a.norm_error == pytest.approx(b.norm_error, rel=1e-5, abs=1e-12)
    assert a.worst_relative == pytest.approx(b.worst_relative, rel=1e-6)


@given(cases())
def test_loss_is_counted_right(case):
    kind, array = case
    agree(loss_of(array, kind), account(array, kind))


@given(cases(), st.lists(st.integers(0, 12), max_size=4))
def test_the_loss_of_chunks_is_that_of_the_whole(case, cuts):
    kind, array = case
    meter = LossMeter(kind)
    for chunk in np.split(array, sorted(min(c, array.size) for c in cuts)):
        meter.add(chunk)
    agree(meter.result(), loss_of(array, kind))


@given(cases())
def test_the_fast_account_counts_the_same_and_bounds_the_errors(case):
    kind, array = case
    meter = LossMeter(kind, exact=False)
    meter.add(array)
    fast, slow = meter.result(), loss_of(array, kind)
    for name in ("size", "absmax", "overflowed", "vanished", "negative_vanished", "subnormal", "smallest"):
        assert getattr(fast, name) == getattr(slow, name), name
    assert fast.norm_error >= slow.norm_error * (1 - 1e-5)
    assert fast.worst_relative >= slow.worst_relative * (1 - 1e-6)


@given(cases())
def test_sign_and_order_do_not_matter(case):
    kind, array = case
    whole, turned = loss_of(array, kind), loss_of(-array[::-1], kind)
    assert (whole.vanished, whole.overflowed) == (turned.vanished, turned.overflowed)
    assert whole.negative_vanished + turned.negative_vanished == whole.vanished
    agree(loss_of(array.reshape(1, -1), kind), whole)


def test_what_is_exceptional():
    assert not loss_of(np.float32([1, 1 / 3, -2e-3]), Format.FP16).is_exceptional
    for one in (1e5, 1e-6, 1e-12):
        assert loss_of(np.float32([1, one]), Format.FP16).is_exceptional
        assert not loss_of(np.float32([1, one]), Format.BF16).is_exceptional
    assert not loss_of(np.float32([]), Format.FP16).is_exceptional
    assert not loss_of(np.float32([np.inf, np.nan]), Format.FP16).is_exceptional
