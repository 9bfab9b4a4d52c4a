"""Input specifications, shuffling, feeds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mpdeploy.errors import UsageError
from mpdeploy.train import Arrays, TensorSpec
from mpdeploy.train.data import in_order, shuffled
from mpdeploy.train.feeds import write_feeds


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "says"),
    [
        ("a b", "float32", (1,), "cannot name an input"),
        ("x", "float33", (1,), "unknown dtype"),
        ("x", "float32", ("batch size",), "cannot name an axis"),
        ("x", "float32", (0,), "axis of size 0"),
    ],
)
def test_impossible_specs_are_refused(name, dtype, shape, says):
    with pytest.raises(UsageError, match=says):
        TensorSpec(name, dtype, shape)


def test_a_spec_checks_dtype_rank_sizes_and_named_axes_across_inputs():
    ids, mask = TensorSpec("ids", "int64", ("batch", "time")), TensorSpec("mask", "float32", ("batch", 8))
    sizes: dict[str, int] = {}
    ids.check("int64", (2, 5), sizes, where="here")
    mask.check("float32", (2, 8), sizes, where="here")
    assert sizes == {"batch": 2, "time": 5}
    for dtype, shape in [("float64", (2, 8)), ("float32", (2, 7)), ("float32", (2, 8, 1)), ("float32", (3, 8))]:
        with pytest.raises(UsageError, match=r"input mask float32\[batch, 8\] was given"):
            mask.check(dtype, shape, dict(sizes), where="here")


@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 5))
def test_an_epoch_holds_each_example_at_most_once_in_full_batches(count, size, epoch):
    batches = shuffled(count, size, seed=3, epoch=epoch)
    flat = [index for batch in batches for index in batch]
    assert len(set(flat)) == len(flat)
    assert set(flat) <= set(range(count))
    assert {len(batch) for batch in batches} == {min(size, count)}
    assert count - len(flat) < size
    assert batches == shuffled(count, size, seed=3, epoch=epoch)


def test_epochs_and_seeds_shuffle_differently():
    orders = [shuffled(50, 10, seed=s, epoch=e) for s in (0, 1) for e in (0, 1)]
    assert all(a != b for i, a in enumerate(orders) for b in orders[:i])


@given(st.integers(1, 100), st.integers(1, 40))
def test_in_order_covers_everything_once(count, size):
    assert [index for batch in in_order(count, size) for index in batch] == list(range(count))


def test_arrays_make_batches_in_the_order_asked_for():
    examples = Arrays((np.arange(10, dtype=np.float32),), np.arange(10) * 2)
    batch = examples.batch([7, 1])
    assert torch.equal(batch.inputs[0], torch.tensor([7.0, 1.0]))
    assert torch.equal(batch.labels, torch.tensor([14, 2]))
    with pytest.raises(UsageError, match=r"\[10, 9\] examples"):
        Arrays((np.zeros(10), np.zeros(9)), np.zeros(10))


@pytest.mark.parametrize(("axis", "feeds", "written"), [("batch", 3, 10), (4, 2, 8)])
def test_feeds_hold_the_inputs_by_name_and_the_labels(tmp_path, axis, feeds, written):
    examples = Arrays((np.arange(24, dtype=np.float32).reshape(12, 2),), np.arange(12))
    spec = TensorSpec("x", "float32", (axis, 2))
    assert write_feeds(tmp_path / "out", [spec], examples, size=4, limit=10) == written
    files = sorted((tmp_path / "out").iterdir())
    assert [f.name for f in files] == [f"{i:04}.npz" for i in range(feeds)]
    loaded = [dict(np.load(f)) for f in files]
    assert all(feed.keys() == {"x", "labels"} for feed in loaded)
    assert np.array_equal(np.concatenate([f["x"] for f in loaded]), examples.inputs[0][:written])
    assert np.array_equal(np.concatenate([f["labels"] for f in loaded]), np.arange(written))
