"""Records survive JSON; what is not one is refused with the place."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpdeploy import records
from mpdeploy.conversion.record import ConversionResult
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format
from mpdeploy.numerics.rounding import Loss, loss_of
from mpdeploy.plan.record import Decision, PrecisionPlan, WeightLoss

text = st.text(max_size=20)
formats = st.sampled_from(list(Format))
decisions = st.builds(Decision, text, text, st.lists(text, max_size=3).map(tuple), formats, text, text)
counts = st.integers(0, 2**53)
losses = st.builds(
    Loss,
    formats,
    counts,
    st.floats(0, 1e38),
    st.floats(0, 1e38),
    counts,
    counts,
    counts,
    counts,
    st.floats(0, 1),
    st.floats(0, 1),
)
plans = st.builds(
    PrecisionPlan,
    precision=st.sampled_from([Format.FP16, Format.BF16]),
    policy=text,
    model=text,
    opset=st.integers(7, 30),
    decisions=st.lists(decisions, max_size=4).map(tuple),
    weights=st.lists(st.builds(WeightLoss, text, st.lists(text, max_size=2).map(tuple), losses), max_size=2).map(tuple),
    low_io=st.booleans(),
    notes=st.lists(text, max_size=2).map(tuple),
)


@given(plans)
def test_a_plan_survives(plan):
    content = records.to_json(plan)
    assert records.from_json(PrecisionPlan, content, "here") == plan
    assert content.endswith(b"\n")
    assert json.loads(content).keys() == records.to_builtins(plan).keys()


def test_files(tmp_path):
    plan = PrecisionPlan(Format.FP16, "safe", "", 22, ())
    records.save(plan, tmp_path / "plan.json")
    assert records.load(PrecisionPlan, tmp_path / "plan.json") == plan
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


def test_json_has_no_infinity():
    loss = dataclasses.replace(loss_of(np.ones(3, np.float32), Format.FP16), absmax=math.inf)
    assert json.loads(records.to_json(loss))["absmax"] is None


GOOD = records.to_json(
    PrecisionPlan(Format.FP16, "safe", "", 22, (Decision("n", "Add", (), Format.FP32, "MP1", "why"),))
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t[:-30], "truncated"),
        (lambda t: "no json", "malformed"),
        (lambda t: "[]", "Expected `object`"),
        (lambda t: t.replace('"fp16"', '"fp17"'), r"Invalid enum value 'fp17' - at `\$.precision`"),
        (lambda t: t.replace('"opset": 22', '"opset": "22"'), r"Expected `int`, got `str` - at `\$.opset`"),
        (lambda t: t.replace('"policy": "safe",', ""), "missing required field `policy`"),
        (lambda t: t.replace('"fp32"', "32"), r"at `\$.decisions\[0\].format`"),
        (lambda t: t.replace("mpdeploy.plan/1", "mpdeploy.plan/2"), "has schema 'mpdeploy.plan/2', this version reads"),
        (lambda t: t.replace("mpdeploy.plan/1", "mpdeploy.drift/1"), "has schema 'mpdeploy.drift/1'"),
        (lambda t: t.replace('"mpdeploy.plan/1"', "2"), "has schema 2"),
        (lambda t: t.replace(' "schema": "mpdeploy.plan/1"', ' "other": 1'), "it has no schema, 'mpdeploy.plan/1'"),
        (lambda t: t.replace("plan/1", "plan/2").replace('"policy": "safe",', ""), "has schema 'mpdeploy.plan/2'"),
        (lambda t: "{}", "it has no schema"),
        (lambda t: "[" * 100_000, "not a valid PrecisionPlan"),
    ],
)
def test_what_is_no_plan_is_refused_with_its_place(change, says):
    with pytest.raises(UsageError, match=says) as caught:
        records.from_json(PrecisionPlan, change(GOOD.decode()).encode(), "my/plan.json")
    assert caught.value.where == "my/plan.json"
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_utf8_are_refused():
    with pytest.raises(UsageError):
        records.from_json(PrecisionPlan, GOOD.replace(b"safe", b"s\xff\xfee"), "here")


def test_every_record_on_the_road_has_a_schema_and_is_frozen():
    from mpdeploy.engine.record import EngineRecord
    from mpdeploy.pipeline import ExportResult
    from mpdeploy.report.record import Report
    from mpdeploy.train.checkpoint import CheckpointRecord
    from mpdeploy.verification.record import DriftReport

    for kind in (ConversionResult, PrecisionPlan, DriftReport, EngineRecord, Report, ExportResult, CheckpointRecord):
        schema = next(f for f in dataclasses.fields(kind) if f.name == "schema")
        assert schema.default.startswith("mpdeploy."), kind
        assert kind.__dataclass_params__.frozen, kind
