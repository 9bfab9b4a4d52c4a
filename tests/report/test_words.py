"""Numbers as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpdeploy.report import words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.0123, "0.0123"),
        (4.12e-5, "4.1e-5"),
        (12.345, "12.3"),
        (1e9, "1.0e9"),
        (None, "–"),
        (math.inf, "–"),
    ],
)
def test_errors(value, text):
    assert words.error(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (0.9987, "0.9987"), (0.99999982, "0.99999982"), (0.5, "0.5000"), (-1.0, "-1.0000"), (None, "–")],
)
def test_cosines_tell_themselves_from_one(value, text):
    assert words.cosine(value) == text


@given(st.floats(0, 1))
def test_only_a_full_share_reads_100_percent(value):
    assert (words.share(value) == "100 %") == (value == 1)


def test_shares_sizes_and_counts():
    assert words.share(0.99166) == "99.17 %"
    assert words.share(0.9999999) == "99.99 %"
    assert words.share(-0.0028) == "-0.28 %"
    assert [words.size(n) for n in (312, 45_200, 812_345, 1_300_000_000)] == ["312 B", "45.2 kB", "812 kB", "1.30 GB"]
    assert [words.count(n, "sample") for n in (1, 2, 12345)] == ["1 sample", "2 samples", "12 345 samples"]
