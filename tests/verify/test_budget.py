"""Budgets: the language of limits and the defaults."""

import math

import pytest

from mpdeploy.errors import UsageError
from mpdeploy.numerics.budget import parse_budget
from mpdeploy.numerics.default_budget import default_budget
from mpdeploy.numerics.drift import OutputDrift
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.limits import Limit, Metric
from mpdeploy.numerics.significance import accuracy


def test_limits_are_read_and_written_alike():
    budget = parse_budget("cosine>=0.999, logits:top1>=0.995,  scores:0:max_abs <= 1e-3")
    assert budget.limits == (
        Limit(Metric.COSINE, 0.999),
        Limit(Metric.TOP1, 0.995, "logits"),
        Limit(Metric.MAX_ABS, 0.001, "scores:0"),
    )
    assert parse_budget(str(budget)).limits == budget.limits
    assert budget.strict


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (" , ", "empty"),
        ("cosine", "not a limit"),
        ("cosine>0.9", "not a limit"),
        ("cosine=0.9", "not a limit"),
        ("wonder>=1", "unknown metric 'wonder'"),
        ("cosin>=0.9", "unknown metric 'cosin'.*did you mean cosine"),
        ("norm_rel<=0.9", "did you mean norm_relative"),
        ("TOP1>=0.9", "did you mean top1"),
        ("top1>=99", "can never hold.*write 0.99"),
        ("cosine<=0.9", "bad result"),
        ("max_abs>=3", "bad result"),
        ("cosine>=high", "'high' is not a number"),
        ("cosine>=nan", "NaN"),
    ],
)
def test_a_wrong_budget_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        parse_budget(text)


@pytest.mark.parametrize("metric", list(Metric))
def test_nan_holds_no_limit_and_a_perfect_value_holds_all(metric):
    limit = Limit(metric, 0.9 if metric.more_is_better else 0.1)
    assert not limit.holds(math.nan)
    perfect = {Metric.SQNR: math.inf}.get(metric, 1.0 if metric.more_is_better else 0.0)
    assert limit.holds(perfect)
    assert limit.used(perfect) == 0
    assert limit.used(limit.value) == pytest.approx(1)


def test_the_share_used_exceeds_one_exactly_when_the_limit_breaks():
    for limit, values in (
        (Limit(Metric.COSINE, 0.99), (0.5, 0.9899, 0.9901, 1.0)),
        (Limit(Metric.SQNR, 40), (10, 39.9, 40.1, 90)),
        (Limit(Metric.NORM_RELATIVE, 0.02), (0.0, 0.019, 0.021, 5)),
        (Limit(Metric.ACCURACY_DROP, 0.01), (-0.2, 0.0, 0.02)),
        (Limit(Metric.MAX_ABS, 0), (0.0, 1e-9)),
        (Limit(Metric.MATCH, 1), (1.0, 0.9999)),
    ):
        for value in values:
            assert (limit.used(value) <= 1) == limit.holds(value)


def test_defaults_are_looser_for_coarser_formats_and_know_classifiers():
    plain = [OutputDrift("y", False, 1, 1, 1.0)]
    labelled = [OutputDrift("y", False, 1, 1, 1.0, accuracy=accuracy(1, 1, 1, 0, 0))]
    limits = {
        f: {limit.metric: limit.value for limit in default_budget(f, plain).limits}
        for f in (Format.FP32, Format.FP16, Format.BF16)
    }
    for metric in limits[Format.FP16]:
        order = [limits[f][metric] for f in (Format.FP32, Format.FP16, Format.BF16)]
        assert order == sorted(order, reverse=metric.more_is_better)
    extra = {limit.metric for limit in default_budget(Format.FP16, labelled).limits} - set(limits[Format.FP16])
    assert extra == {Metric.TOP1, Metric.ACCURACY_DROP}
