"""The largest part of a set that goes down, found by asking."""

from hypothesis import given
from hypothesis import strategies as st

from mpdeploy.searching.descent import Unit, widest

OPERATORS = ("MatMul", "Softmax", "Add")
UNITS = st.lists(st.sampled_from(OPERATORS), max_size=24).map(
    lambda ops: [Unit(f"n{i}", op) for i, op in enumerate(ops)]
)
PLENTY = 10_000


@given(UNITS, st.sets(st.integers(0, 23)))
def test_exactly_what_breaks_stays_up(units, bad):
    guilty = {f"n{i}" for i in bad}
    found = widest(units, lambda down: not guilty & {u.name for u in down}, PLENTY)
    assert {u.name for u in found.refused} == guilty & {u.name for u in units}
    assert {u.name for u in found.freed} == {u.name for u in units} - guilty
    assert len(found.freed) + len(found.refused) == len(units)


@given(UNITS, st.integers(0, 24))
def test_what_goes_down_together_was_asked_together(units, room):
    """A limit on the sum: no one is to blame alone."""
    asked = [()]

    def works(down):
        if len(down) <= room:
            asked.append(tuple(down))
        return len(down) <= room

    found = widest(units, works, PLENTY)
    assert tuple(found.freed) == asked[-1]
    assert len(found.freed) == min(room, len(units))


@given(UNITS, st.integers(1, 12), st.sets(st.integers(0, 23)))
def test_it_is_asked_no_more_often_than_allowed(units, trials, bad):
    questions = []

    def works(down):
        questions.append(tuple(down))
        return not {f"n{i}" for i in bad} & {u.name for u in down}

    found = widest(units, works, trials)
    assert len(questions) == found.asked <= trials
    assert len(set(questions)) == len(questions)  # nothing twice
    assert not {u.name for u in found.freed} & {f"n{i}" for i in bad}


def test_one_culprit_among_many_is_found_in_logarithmic_time():
    units = [Unit(f"n{i}", "MatMul") for i in range(1024)]
    found = widest(units, lambda down: "n700" not in {u.name for u in down}, PLENTY)
    assert [u.name for u in found.refused] == ["n700"]
    assert found.asked <= 21


def test_what_comes_first_goes_first_and_a_known_failure_is_not_asked():
    units = [Unit("a", "MatMul"), Unit("b", "Softmax"), Unit("c", "Softmax")]
    questions = []

    def works(down):
        questions.append([u.name for u in down])
        return len(down) < 3

    found = widest(units, works, PLENTY, whole_fails=True)
    assert questions == [["a"], ["a", "b"]]
    assert [u.name for u in found.freed] == ["a", "b"]
    assert [u.name for u in found.refused] == ["c"]
