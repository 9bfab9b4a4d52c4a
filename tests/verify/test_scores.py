"""Scores of tasks and of the user's own metrics."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from mpdeploy.errors import UsageError
from mpdeploy.numerics.budget import parse_budget
from mpdeploy.numerics.limits import ScoreLimit
from mpdeploy.runtime.feeds import feeds_of
from mpdeploy.verification.api import verify
from mpdeploy.verification.tasks import Scoring, parse_task

node = helper.make_node
QUICK = {"noise": False}


def scores_of(report):
    return {score.name: score.value for score in report.scores}


def codes(report):
    return [reason.code for reason in report.verdict.reasons]


@pytest.fixture
def detector(write):
    """A model that ends in NMS; the score of one box is its input, the threshold 0.5."""

    def build(name, low):
        kind = np.float16 if low else np.float32
        cast = [node("Cast", ["s"], ["s_low"], to=TensorProto.FLOAT16)] if low else []
        score = "s_low" if low else "s"
        nodes = [
            *cast,
            node("Mul", [score, "one"], ["m"]),
            node("Cast", ["m"], ["scores"], to=TensorProto.FLOAT),
            node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "threshold"], ["picked"]),
            node("Slice", ["picked", "two", "three", "axis"], ["index"]),
            node("Squeeze", ["index", "axis"], ["i"]),
            node("Squeeze", ["boxes", "zero"], ["b2"]),
            node("Gather", ["b2", "i"], ["b"], axis=0),
            node("Reshape", ["scores", "flat"], ["s1"]),
            node("Gather", ["s1", "i"], ["p"], axis=0),
        ]
        corners = np.float32([[0, 0, 10, 10], [20, 20, 30, 30], [40, 40, 60, 60]])[None]
        constants = {
            "one": kind(1),
            "boxes": corners,
            "most": np.int64([10]),
            "overlap": np.float32([0.5]),
            "threshold": np.float32([0.5]),
            "two": np.int64([2]),
            "three": np.int64([3]),
            "axis": np.int64([1]),
            "zero": np.int64([0]),
            "flat": np.int64([-1]),
        }
        return write(
            name,
            nodes,
            {"s": [1, 1, 3]},
            {"b": ["n", 4], "p": ["n"]},
            [numpy_helper.from_array(v, k) for k, v in constants.items()],
        )

    return build


def test_boxes_whose_number_differs_are_matched(detector):
    """V6: one score near the threshold rounds below it, so the candidate finds one box less."""
    near = np.float32(0.50001)  # 0.5 in FP16, which is not above 0.5
    feeds = feeds_of([{"s": np.float32([[[0.9, 0.8, 0.7]]])}] * 20 + [{"s": np.float32([[[0.9, near, 0.7]]])}])
    reference, candidate = detector("ref", low=False), detector("cand", low=True)
    plain = verify(reference, candidate, feeds, **QUICK)
    assert "V106" in codes(plain)
    scoring = Scoring(tasks=("detection:boxes=b,scores=p",))
    report = verify(reference, candidate, feeds, **QUICK, scoring=scoring)
    assert report.verdict.passed, report.verdict
    found = scores_of(report)
    assert found["boxes"] == pytest.approx(2 * 62 / (63 + 62))
    assert found["box_iou"] == pytest.approx(1)
    assert 0 < found["box_score"] < 1e-3
    assert report.scores[0].sample == "arrays #20"
    assert report.outputs == ()
    strict = verify(reference, candidate, feeds, "score.boxes>=0.999", **QUICK, scoring=scoring)
    assert codes(strict) == ["V201"]
    assert "score 'boxes' is 0.992" in strict.verdict.headline


def test_detections_in_one_output_and_in_batches():
    scorer = parse_task("detection:dets")
    rows = np.zeros((2, 3, 6))
    rows[0, 0] = [0, 0, 10, 10, 0.9, 1]
    rows[1, :2] = [[0, 0, 5, 5, 0.8, 2], [9, 9, 12, 12, 0.7, 2]]
    other = rows.copy()
    other[1, 1, :4] += 100
    scorer.add({"dets": rows}, {"dets": other}, {}, 2, "feed")
    assert {s.name: s.value for s in scorer.result()} == {
        "boxes": pytest.approx(4 / 6),
        "box_iou": pytest.approx(1),
        "box_score": 0,
    }


def test_masks_overlap():
    scorer = parse_task("masks:m")
    r, c = np.full((1, 1, 4, 4), -1.0), np.full((1, 1, 4, 4), -1.0)
    r[..., :2, :], c[..., :3, :] = 1, 1
    scorer.add({"m": r}, {"m": c}, {}, 1, "feed")
    assert scorer.result()[0].value == pytest.approx((8 / 12 + 4 / 8) / 2)
    classes = parse_task("masks:m")
    scores = np.random.default_rng(0).standard_normal((2, 5, 8, 8))
    classes.add({"m": scores}, {"m": scores}, {}, 2, "feed")
    assert classes.result()[0].value == 1
    nan = parse_task("masks:m@0.5")
    nan.add({"m": r}, {"m": c * np.nan}, {}, 1, "feed")
    assert nan.result()[0].value == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("detection", "is not a task"),
        ("pose:x", "unknown task 'pose'"),
        ("detection:boxes=b", "needs boxes and scores"),
        ("detection:boxes=b,scores=s,size=x", "needs boxes and scores"),
        ("masks:m@high", "'high' is not a threshold"),
    ],
)
def test_a_wrong_task_is_refused(text, says):
    with pytest.raises(UsageError, match=says):
        parse_task(text)


@pytest.mark.parametrize(
    ("task", "outputs", "says"),
    [
        ("detection:other", {"dets": np.zeros((1, 6))}, "they share dets"),
        ("detection:dets", {"dets": np.zeros((1, 5))}, r"shape \[1, 5\]"),
        ("detection:boxes=b,scores=s", {"b": np.zeros((3, 4)), "s": np.zeros(2)}, "do not fit"),
        ("masks:m", {"n": np.zeros((1, 1))}, "they share n"),
    ],
)
def test_outputs_that_do_not_fit_a_task_are_told(task, outputs, says):
    with pytest.raises(UsageError, match=says):
        parse_task(task).add(outputs, outputs, {}, 1, "feed")


METRICS = """
import numpy as np

def agreement(reference, candidate, feed):
    return float((reference["logits"].argmax(1) == candidate["logits"].argmax(1)).mean())

def several(reference, candidate, feed):
    return {"half": 0.5, "labels": float(len(feed["labels"]))}

class Spread:
    def __init__(self):
        self.seen = []
    def add(self, reference, candidate, feed):
        self.seen.append(np.abs(reference["logits"] - candidate["logits"]).max())
    def result(self):
        return max(self.seen)

def fails(reference, candidate, feed):
    raise RuntimeError("no such thing")

def words(reference, candidate, feed):
    return "good"

def nothing(reference, candidate, feed):
    return float("nan")
"""


@pytest.fixture
def metric(tmp_path):
    (tmp_path / "metrics.py").write_text(METRICS)
    return lambda name: f"{tmp_path / 'metrics.py'}:{name}"


def test_the_users_own_metrics(mlp, samples, metric):
    half = {k: v[:25] for k, v in samples.items()}
    scoring = Scoring(metrics=(metric("agreement"), metric("several"), metric("Spread")))
    report = verify(mlp("ref"), mlp("cand", "fp16"), feeds_of([samples, half]), **QUICK, scoring=scoring)
    found = scores_of(report)
    assert found["agreement"] >= 0.99
    assert (found["half"], found["labels"]) == (0.5, pytest.approx((100 * 100 + 25 * 25) / 125))
    assert found["Spread"] == pytest.approx(report.outputs[0].max_abs)
    limited = "score.agreement>=0.99, score.Spread<=1"
    assert verify(
        mlp("ref"), mlp("cand", "fp16"), feeds_of([samples]), limited, **QUICK, scoring=scoring
    ).verdict.passed
    over = verify(mlp("ref"), mlp("cand", "fp16"), feeds_of([samples]), "score.Spread<=1e-9", **QUICK, scoring=scoring)
    assert codes(over) == ["V201"]
    unknown = verify(mlp("ref"), mlp("cand", "fp16"), feeds_of([samples]), "score.map>=0.5", **QUICK, scoring=scoring)
    assert codes(unknown) == ["V202"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fails", "RuntimeError: no such thing"),
        ("words", "returned a str"),
        ("absent", "no function 'absent'"),
    ],
)
def test_a_metric_that_fails_is_one_line(mlp, samples, metric, name, says):
    with pytest.raises(UsageError, match=says):
        verify(mlp("ref"), mlp("ref"), feeds_of([samples]), **QUICK, scoring=Scoring(metrics=(metric(name),)))


def test_a_score_that_is_not_finite_never_passes(mlp, samples, metric):
    report = verify(mlp("ref"), mlp("ref"), feeds_of([samples]), **QUICK, scoring=Scoring(metrics=(metric("nothing"),)))
    assert codes(report) == ["V109"]


def test_two_scores_of_one_name_are_refused(mlp, samples, metric):
    twice = Scoring(metrics=(metric("agreement"), metric("agreement")))
    with pytest.raises(UsageError, match="two scores are called"):
        verify(mlp("ref"), mlp("ref"), feeds_of([samples]), **QUICK, scoring=twice)


def test_limits_on_scores_are_read_written_and_held():
    budget = parse_budget("cosine>=0.9, score.map50>=0.5, score.wer<=0.1")
    assert budget.scores == (ScoreLimit("map50", 0.5, at_least=True), ScoreLimit("wer", 0.1, at_least=False))
    assert parse_budget(str(budget)).scores == budget.scores
    least, most = budget.scores
    for limit, values in ((least, (0.0, 0.49, 0.5, 0.9)), (most, (0.0, 0.1, 0.11, 5.0))):
        for value in values:
            assert (limit.used(value) <= 1) == limit.holds(value)
    assert not least.holds(float("nan"))
