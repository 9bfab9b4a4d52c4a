"""What a model takes: from words, from data, or not known."""

import numpy as np
import pytest
import torch
from torch import nn

from mpdeploy.errors import ModelError, UsageError
from mpdeploy.runtime.feeds import feeds_of
from mpdeploy.source.adapter import Adapted, adapt, named_outputs
from mpdeploy.source.inputs import Inputs, find_inputs, parse_input
from mpdeploy.train.specs import TensorSpec


@pytest.mark.parametrize(
    ("word", "spec", "sizes"),
    [
        ("image:batch,3,224,224", TensorSpec("image", "float32", ("batch", 3, 224, 224)), (4, 3, 224, 224)),
        ("ids:batch,length:int64", TensorSpec("ids", "int64", ("batch", "length")), (4, 32)),
        ("ids:b=2,length=128:int32", TensorSpec("ids", "int32", ("b", "length")), (2, 128)),
        ("scale::float64", TensorSpec("scale", "float64", ()), ()),
        ("x:8", TensorSpec("x", "float32", (8,)), (8,)),
    ],
)
def test_words(word, spec, sizes):
    assert parse_input(word) == (spec, sizes)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("image", "has no shape"),
        ("image:batch,-3", "'-3' is not an axis"),
        ("image:batch,3x4", "'3x4' is not an axis"),
        ("image:b=many", "'b=many' is not an axis"),
        ("image:3=4", "'3=4' is not an axis"),
        ("image:batch,0", "an axis of size 0"),
        ("image:batch:pixels", "unknown dtype"),
        ("im age:batch", "cannot name an input"),
    ],
)
def test_words_that_say_nothing(word, says):
    with pytest.raises(UsageError, match=says):
        parse_input(word)


class Two(nn.Module):
    def forward(self, ids, mask, scale=1.0):
        return ids * mask


def test_from_data_under_the_names_of_parameters():
    lengths = (5, 9, 7)
    feeds = feeds_of(
        [
            {"ids": np.zeros((2, n), np.int64), "mask": np.ones((2, n), np.float32), "labels": np.zeros(2)}
            for n in lengths
        ]
    )
    found = find_inputs(Two(), (), feeds, "model.pt")
    assert found.specs == (
        TensorSpec("ids", "int64", ("batch", "ids_1")),
        TensorSpec("mask", "float32", ("batch", "ids_1")),
    )
    assert found.examples["ids"].shape == (2, 5)
    assert not found.made_up


def test_data_under_other_names():
    one = find_inputs(nn.Linear(4, 2), (), feeds_of([{"x": np.zeros((3, 4), np.float32)}]), "model.pt")
    assert [spec.name for spec in one.specs] == ["x"]
    with pytest.raises(UsageError, match="the data holds a, b, the model takes ids, mask, scale"):
        find_inputs(Two(), (), feeds_of([{"a": np.zeros(1), "b": np.zeros(1)}]), "model.pt")
    words = ("ids:batch:int64", "mask:batch")
    with pytest.raises(UsageError, match="lacks input 'mask', it holds ids"):
        find_inputs(Two(), words, feeds_of([{"ids": np.zeros(1, np.int64)}]), "model.pt")
    with pytest.raises(UsageError, match=r"input ids int64\[batch\] was given float32\[1\]"):
        find_inputs(Two(), words, feeds_of([{"ids": np.zeros(1, np.float32), "mask": np.zeros(1)}]), "model.pt")


def test_neither_words_nor_data():
    with pytest.raises(UsageError, match=r"does not say what the model takes .*forward\(\) takes ids, mask, scale"):
        find_inputs(Two(), (), None, "model.pt")


def test_made_up_inputs_are_the_same_each_time_and_agree_in_size():
    words = ("ids:batch,length:int64", "mask:batch,length=5", "flag:batch:bool")
    first, again = (find_inputs(Two(), words, None, "model.pt") for _ in range(2))
    assert first.made_up
    assert first.examples["mask"].shape == first.examples["ids"].shape == (4, 32)
    assert first.examples["flag"].dtype == torch.bool
    assert all(torch.equal(first.examples[name], again.examples[name]) for name in first.examples)


def ready(*names):
    return Inputs(
        tuple(TensorSpec(n, "float32", (2,)) for n in names),
        {n: torch.full((2,), 1.0 + i) for i, n in enumerate(names)},
        True,
    )


def test_a_plain_module_stays_itself():
    module = nn.Linear(2, 2)
    assert adapt(module, ready("x"), "model.pt") == (module, ("output",))


def test_arguments_out_of_order_go_by_name():
    class Minus(nn.Module):
        def forward(self, a, b):
            return a - b

    module, outputs = adapt(Minus(), ready("b", "a"), "model.pt")
    assert isinstance(module, Adapted)
    assert outputs == ("output",)
    assert module(torch.tensor(1.0), torch.tensor(5.0))[0].item() == 4.0


def test_outputs_of_every_make():
    from collections import namedtuple
    from dataclasses import dataclass

    @dataclass
    class Result:
        logits: torch.Tensor
        loss: None = None

    t = torch.ones(1)
    boxes = namedtuple("Boxes", "corners scores")
    for value, names in (
        (t, ["output"]),
        ([t], ["output"]),
        ((t, t), ["output_0", "output_1"]),
        ({"a": t, "b": {"c": t}}, ["a", "b_c"]),
        (Result(t), ["logits"]),
        (boxes(t, t), ["corners", "scores"]),
        ({"levels": [t, t], "n": 3}, ["levels_0", "levels_1"]),
        ("text", []),
    ):
        assert list(named_outputs(value)) == names


def test_what_cannot_run_or_returns_nothing():
    with pytest.raises(UsageError, match=r"the model fails on x \[2\]: RuntimeError: .*forward\(\) takes input"):
        adapt(nn.Linear(3, 2), ready("x"), "model.pt")

    class Nothing(nn.Module):
        def forward(self, x):
            return {"text": "hello"}

    with pytest.raises(ModelError, match="returns a dict without a tensor"):
        adapt(Nothing(), ready("x"), "model.pt")
