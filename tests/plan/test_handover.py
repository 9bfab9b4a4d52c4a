"""Ranges measured in training are evidence where no data is given."""

import pytest

from mpdeploy import records
from mpdeploy.errors import UsageError
from mpdeploy.files import sha256_of
from mpdeploy.numerics.handover import MeasuredRanges, ValueRange

TEXT = "g (float[2,4] x, float[4,4] w) => (float[2,4] y) { a = MatMul(x, w)  s = Mul(a, a)  y = MatMul(s, w) }"


def with_ranges(workshop, high):
    values = {"a": ValueRange(-high, high, "layer"), "s": ValueRange(0.0, high**2, "square")}
    measured = MeasuredRanges(sha256_of(workshop.source(TEXT)), "net.py", values, (), ())
    path = workshop.folder / "ranges.json"
    records.save(measured, path)
    return path


def decision(plan):
    return next(d for d in plan.decisions if d.op == "Mul")


def test_a_range_from_training_decides(workshop):
    plan = workshop.plan(TEXT, ranges=with_ranges(workshop, 20.0))
    assert (decision(plan).format.value, plan.policy) == ("fp16", "balanced")
    assert plan.data.name == "training of net.py"
    plan = workshop.plan(TEXT, ranges=with_ranges(workshop, 400.0))
    assert (decision(plan).format.value, decision(plan).code) == ("fp32", "MP106")
    assert "measured in training: 's': |x| reaches 1.6e+05" in decision(plan).reason


def test_without_them_the_same_operator_stays_fp32(workshop):
    assert decision(workshop.plan(TEXT)).format.value == "fp32"


def test_ranges_of_another_model_are_refused(workshop):
    path = with_ranges(workshop, 1.0)
    with pytest.raises(UsageError, match="another model"):
        workshop.plan(TEXT.replace("Mul(a, a)", "Add(a, a)"), ranges=path)
