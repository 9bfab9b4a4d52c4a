"""Shape ranges from data."""

import numpy as np
import pytest

from mpdeploy.engine.network import Port
from mpdeploy.engine.ranges import fixed_by_data, profile_from
from mpdeploy.errors import UsageError
from mpdeploy.runtime.feeds import feeds_of

X = Port("x", "fp32", ("N", 4))
FIXED = Port("f", "fp32", (2, 2))


def feeds(*rows):
    return feeds_of([{"x": np.zeros((n, 4)), "f": np.zeros((2, 2))} for n in rows])


def test_smallest_most_frequent_largest():
    (profile,) = profile_from(feeds(8, 1, 8, 32), [X, FIXED], "m")
    assert [str(r) for r in profile.ranges] == ["x:1x4:8x4:32x4"]


def test_the_first_axis_goes_down_to_one_and_the_others_to_what_was_seen():
    port = Port("x", "fp32", ("batch", "time"))
    data = feeds_of([{"x": np.zeros((8, 20))}, {"x": np.zeros((8, 30))}])
    assert str(profile_from(data, [port], "m")[0].ranges[0]) == "x:1x20:8x30:8x30"


def test_an_axis_of_a_single_size_is_told():
    port = Port("x", "fp32", ("batch", "time", 4))
    data = feeds_of([{"x": np.zeros((8, 20, 4))}, {"x": np.zeros((8, 20, 4))}])
    (told,) = fixed_by_data(profile_from(data, [port], "m"), [port])
    assert told.startswith("axis 1 of input 'x' is 20 in all the data")
    several = feeds_of([{"x": np.zeros((8, 20, 4))}, {"x": np.zeros((8, 30, 4))}])
    assert fixed_by_data(profile_from(several, [port], "m"), [port]) == ()


def test_of_equally_frequent_sizes_the_largest():
    assert str(profile_from(feeds(8, 1, 32), [X], "m")[0].ranges[0]) == "x:1x4:32x4:32x4"


def test_an_input_that_holds_a_shape_gives_its_values():
    size = Port("size", "int64", (2,), holds_shape=True)
    data = feeds_of([{"size": np.array([2, 9])}, {"size": np.array([4, 3])}])
    assert str(profile_from(data, [size], "m")[0].ranges[0]) == "size:2x3:4x9:4x9"


def test_without_dynamic_inputs_the_data_are_not_read():
    assert profile_from(feeds_of([]), [FIXED], "m") == ()


def test_data_that_do_not_fit_are_told():
    with pytest.raises(UsageError, match=r"lacks input 'x'.*give --shapes"):
        profile_from(feeds_of([{"y": np.zeros(1)}]), [X], "m")
    with pytest.raises(UsageError, match="different rank"):
        profile_from(feeds_of([{"x": np.zeros((1, 4))}, {"x": np.zeros(4)}]), [X], "m")
