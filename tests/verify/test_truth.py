"""Right answers in the data: classes, numbers, images; each judged where it belongs, or refused in a line."""

import numpy as np
import pytest

from mpdeploy.errors import UsageError
from mpdeploy.runtime.truth import truth_in

F = np.float32


def logits(rows, classes, *rest):
    return np.zeros((rows, *rest, classes), F)


def test_whole_numbers_are_classes_of_each_output_that_has_them():
    outputs = {"wide": logits(3, 10), "narrow": logits(3, 4), "ids": np.zeros(3, np.int64), "map": logits(3, 10, 5)}
    labels = np.array([0, 9, -100])
    assert set(truth_in({"labels": labels}, outputs, 3, "d").labels) == {"wide", "ids"}
    assert set(truth_in({"labels": labels[:, None]}, outputs, 3, "d").labels) == {"wide", "ids"}
    assert set(truth_in({"labels": labels.astype(np.float64)}, outputs, 3, "d").labels) == {"wide", "ids"}
    assert set(truth_in({"labels": np.zeros((3, 5), np.int64)}, outputs, 3, "d").labels) >= {"map"}


@pytest.mark.parametrize("labels", [np.arange(20, 30), np.full(10, -1)])
def test_classes_that_the_model_does_not_have_are_refused(labels):
    with pytest.raises(
        UsageError, match=r"'labels' run from -?\d+ to -?\d+, output 'y' has 10 classes.*--ignore-labels"
    ):
        truth_in({"labels": labels}, {"y": logits(10, 10)}, 10, "d")


@pytest.mark.parametrize("key", ["labels", "targets"])
def test_other_true_values_belong_to_the_output_of_their_shape(key):
    outputs = {"score": np.zeros((4, 1), F), "image": np.zeros((4, 3, 2, 2), F)}
    image = truth_in({key: np.full((4, 3, 2, 2), 0.5)}, outputs, 4, "d")
    assert list(image.targets) == ["image"]
    assert not image.labels
    score = truth_in({key: np.full(4, 0.5)}, outputs, 4, "d")
    assert score.targets["score"].shape == (4, 1)


def test_targets_of_several_outputs_are_named():
    outputs = {"a": np.zeros((4, 2), F), "b": np.zeros((4, 2), F)}
    found = truth_in({"targets.b": np.ones((4, 2)), "targets": np.zeros((4, 2))}, outputs, 4, "d")
    assert found.targets["b"].sum() == 8
    assert found.targets["a"].sum() == 0
    with pytest.raises(UsageError, match=r"'targets.c' .* only a, b"):
        truth_in({"targets.c": np.ones((4, 2))}, outputs, 4, "d")


@pytest.mark.parametrize("array", [np.full((4, 7), 0.5), np.float64(0.5), np.array(["a"] * 4)])
def test_answers_to_nothing_are_refused_with_the_way_out(array):
    with pytest.raises(UsageError, match="--ignore-labels"):
        truth_in({"labels": np.asarray(array)}, {"y": logits(4, 2)}, 4, "d")
