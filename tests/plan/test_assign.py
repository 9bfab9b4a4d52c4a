"""The cut is the cheapest assignment: compared with all assignments of small random graphs."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from mpdeploy.plan.assign import Border, assign


def cost(low, borders):
    """Bytes cast, plus what constants add to the file over storing them low once."""
    total = 0
    for border in borders:
        labels = {low[r] for r in border.readers}
        if border.producer is None:
            total += (False in labels) * (border.cost // 2) + (len(labels) == 2) * (border.cost // 2)
        else:
            total += border.cost * sum(label != low[border.producer] for label in labels)
    return total


@st.composite
def problems(draw):
    count = draw(st.integers(2, 8))
    index = st.integers(0, count - 1)
    border = st.builds(
        Border,
        st.one_of(st.none(), index, index),
        st.lists(index, min_size=1, max_size=3, unique=True).map(tuple),
        st.sampled_from([0, 4, 400, 12_000, 10_000_000]),
    )
    fixed = draw(st.dictionaries(index, st.booleans(), max_size=count))
    return count, fixed, draw(st.lists(border, max_size=12))


@given(problems())
@settings(max_examples=300, deadline=None)
def test_no_assignment_is_cheaper(problem):
    count, fixed, borders = problem
    got = assign(count, fixed, borders)
    assert all(got[i] == low for i, low in fixed.items())
    every = itertools.product([False, True], repeat=count)
    best = min((cost(low, borders), low.count(False)) for low in every if all(low[i] == v for i, v in fixed.items()))
    assert (cost(got, borders), got.count(False)) == best


def test_a_shared_value_is_cast_once():
    # 0 is FP32; its value goes to three low readers: one cast either way, so nothing is gained by moving one.
    assert assign(4, {0: False, 1: True, 2: True}, [Border(0, (1, 2, 3), 100)]) == [False, True, True, True]


def test_the_cast_moves_to_the_smallest_tensor():
    # FP32 -> shrinking move -> low: the move stays FP32, and the small result is cast.
    big, small = Border(0, (1,), 4_000_000), Border(1, (2,), 4_000)
    assert assign(3, {0: False, 2: True}, [big, small]) == [False, False, True]
    assert assign(3, {0: False, 2: True}, [Border(0, (1,), 4_000), Border(1, (2,), 4_000_000)]) == [False, True, True]


def test_a_large_table_is_stored_low_even_if_its_rows_are_then_cast():
    # A Gather from 77 MB of embeddings into an FP32 operator: casting the rows is cheaper than storing FP32.
    table, rows = Border(None, (0,), 77_000_000), Border(0, (1,), 200_000)
    assert assign(2, {1: False}, [table, rows]) == [True, False]
