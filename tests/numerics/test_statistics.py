"""Range statistics: of one array, and of a stream of samples."""

import math
from functools import reduce

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpdeploy.numerics.statistics import TensorStats, stats_of

arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float16]),
    hnp.array_shapes(max_dims=2, max_side=6, min_side=0),
    elements=st.one_of(st.floats(width=16), st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 6e-8, 65504.0])),
)


@given(arrays)
def test_one_sample(array):
    values = array.astype(np.float64).ravel().tolist()
    finite = [x for x in values if math.isfinite(x)]
    found = stats_of(array)
    assert found.low == min(finite, default=math.inf)
    assert found.high == max(finite, default=-math.inf)
    assert found.absmax == max(map(abs, finite), default=0.0)
    assert found.smallest == min((abs(x) for x in finite if x), default=math.inf)
    assert found.nan == any(map(math.isnan, values))
    assert found.infinite == any(map(math.isinf, values))
    assert (found.samples, found.worst_sample) == (1, 0)


@given(st.lists(arrays, max_size=6), st.integers(0, 6))
def test_merging_is_the_same_however_the_samples_are_grouped(samples, cut):
    each = [stats_of(a) for a in samples]
    total = reduce(TensorStats.merged, each, TensorStats())
    halves = [reduce(TensorStats.merged, part, TensorStats()) for part in (each[:cut], each[cut:])]
    assert halves[0].merged(halves[1]) == total
    tops = [s.absmax for s in each]
    assert total.samples == len(each)
    assert total.absmax == max(tops, default=0.0)
    assert total.worst_sample == (tops.index(max(tops)) if tops else 0)
    assert total.nan == sum(s.nan for s in each)
    assert total.infinite == sum(s.infinite for s in each)
    if samples:
        whole = stats_of(np.concatenate([a.astype(np.float32).ravel() for a in samples]))
        assert (total.low, total.high, total.smallest) == (whole.low, whole.high, whole.smallest)


@pytest.mark.parametrize("dtype", [np.float64, ml_dtypes.bfloat16])
def test_other_float_types(dtype):
    found = stats_of(np.array([[-3, 0.5], [np.nan, np.inf]]).astype(dtype))
    assert (found.low, found.high, found.smallest, found.nan, found.infinite) == (-3, 0.5, 0.5, 1, 1)
