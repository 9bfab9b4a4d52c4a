"""Datasets and DataLoaders of torch: shuffled so that a training goes on bit for bit, with workers and without."""

import os
import random
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from mpdeploy.amp import Level
from mpdeploy.errors import DependencyError, UsageError
from mpdeploy.train import Batch
from mpdeploy.train.checkpoint import load_checkpoint
from mpdeploy.train.data import shuffled
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training
from mpdeploy.train.sources import source_of
from mpdeploy.train.world import World

COUNT, SIZE = 40, 8


class Noisy(Dataset):
    """Draws from all kinds of random numbers, as augmentations do."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        drawn = torch.rand(1).item() + np.random.rand() + random.random()
        return torch.tensor([float(index), drawn]), index


class Stream(IterableDataset):
    def __init__(self, known=True):
        self.known = known

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, COUNT, step):
            yield torch.tensor([float(index), torch.rand(1).item() + random.random()]), index

    def __len__(self):
        if not self.known:
            raise TypeError
        return COUNT


def epoch_of(source, epoch=0, first=0, world=None):
    return list(source.epoch(epoch, first, world or World()))


def same(left, right):
    return len(left) == len(right) and all(
        torch.equal(a.inputs[0], b.inputs[0]) and torch.equal(a.labels, b.labels)
        for a, b in zip(left, right, strict=True)
    )


def source(data, **options):
    return source_of(data, ("x",), batch_size=SIZE, seed=3, **options)


SOURCES = {
    "a dataset": lambda workers: Noisy(),
    "a loader": lambda workers: DataLoader(Noisy(), SIZE, shuffle=True, num_workers=workers),
    "persistent workers": lambda workers: DataLoader(
        Noisy(), SIZE, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    ),
    "weighted": lambda workers: DataLoader(
        Noisy(), SIZE, sampler=WeightedRandomSampler([1.0] * 20 + [5.0] * 20, COUNT), num_workers=workers
    ),
    "a generator": lambda workers: DataLoader(
        Noisy(), SIZE, sampler=RandomSampler(range(COUNT), True, COUNT, torch.Generator()), num_workers=workers
    ),
    "batches of its own": lambda workers: DataLoader(
        Noisy(), batch_sampler=BatchSampler(RandomSampler(range(COUNT)), SIZE, False), num_workers=workers
    ),
    "a stream": lambda workers: DataLoader(Stream(), SIZE, num_workers=workers),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", SOURCES)
def test_an_epoch_is_the_same_again_from_any_batch_on(kind, workers):
    whole = epoch_of(source(SOURCES[kind](workers)), epoch=1)
    assert len(whole) == COUNT // SIZE == source(SOURCES[kind](workers)).steps()
    torch.manual_seed(99)
    random.seed(99)
    again = source(SOURCES[kind](workers))
    list(islice(again.epoch(0, 0, World()), 2))  # another epoch was under way before
    assert same(epoch_of(again, epoch=1, first=3), whole[3:])
    other = epoch_of(again, epoch=2)
    assert not same(other, whole), "each epoch draws anew"


@pytest.mark.parametrize("kind", [kind for kind in SOURCES if kind != "a stream"])
def test_workers_change_no_number(kind):
    assert same(epoch_of(source(SOURCES[kind](0))), epoch_of(source(SOURCES[kind](2))))


def test_a_dataset_is_shuffled_as_arrays_are_and_the_rest_left_out():
    batches = epoch_of(source(TensorDataset(torch.arange(43.0)[:, None], torch.arange(43))), epoch=5)
    assert [batch.labels.tolist() for batch in batches] == shuffled(43, SIZE, seed=3, epoch=5)


@pytest.mark.parametrize("kind", SOURCES)
def test_processes_share_each_batch(kind):
    whole = epoch_of(source(SOURCES[kind](0)))
    shares = [epoch_of(source(SOURCES[kind](0)), world=World(rank, 2)) for rank in (0, 1)]
    for batch, one, two in zip(whole, *shares, strict=True):
        assert torch.equal(batch.inputs[0][0::2], one.inputs[0])
        assert torch.equal(batch.inputs[0][1::2], two.inputs[0])


@pytest.mark.parametrize("kind", SOURCES)
def test_what_is_measured_with_is_always_the_same_and_nobody_elses_numbers_move(kind):
    held = source(SOURCES[kind](0))
    before = torch.get_rng_state(), random.getstate()
    one, two = list(held.in_order(16)), list(held.in_order(16))
    assert same(one, two)
    first = held.peek(5)
    assert torch.equal(first.inputs[0], one[0].inputs[0][:5])
    assert sum(len(batch.labels) for batch in held.in_order(16, limit=20)) == 20
    epoch_of(held)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


def test_a_subset_stays_a_subset():
    held = source(DataLoader(Noisy(), SIZE, sampler=SubsetRandomSampler(range(10, 30))))
    assert {int(i) for batch in held.in_order(SIZE) for i in batch.labels} == set(range(10, 30))


def collated(samples):
    return Batch((torch.stack([x for x, _ in samples]),), torch.tensor([y for _, y in samples]))


class Dicts(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return {"labels": index, "other": 0, "x": torch.zeros(2)}


@pytest.mark.parametrize(
    "data",
    [
        Dicts(),
        DataLoader(Noisy(), SIZE, collate_fn=collated),
        DataLoader(
            Noisy(), SIZE, collate_fn=lambda samples: ((collated(samples).inputs[0],), collated(samples).labels)
        ),
    ],
)
def test_batches_come_in_several_forms(data):
    batch = source(data).peek(4)
    assert batch.inputs[0].shape == (4, 2)
    assert batch.labels.tolist() == [0, 1, 2, 3]


def test_steps_of_an_endless_stream():
    class Endless(IterableDataset):
        def __iter__(self):
            yield from ((torch.tensor([float(i)]), i) for i in range(10**9))

    assert [len(batch.labels) for batch in epoch_of(source(Endless(), steps=3))] == [8, 8, 8]
    with pytest.raises(UsageError, match="steps_per_epoch"):
        source(Stream(known=False)).steps()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (DataLoader(Noisy(), SIZE, sampler=DistributedSampler(Noisy(), 2, 0)), "shares out examples"),
        (DataLoader(Noisy(), None), "batch_size=None"),
        ([1, 2], "examples are a list"),
        (TensorDataset(torch.zeros(0)), "no examples"),
    ],
)
def test_what_cannot_be_trained_with_is_refused(data, says):
    with pytest.raises(UsageError, match=says):
        source(data)


RECIPE_DATA = """
class Digits(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        import random
        noise = 0.1 * random.random() + 0.1 * np.random.rand()
        return torch.from_numpy(self.x[index]) + noise * torch.randn(64), self.y[index]


def data():
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16).astype(np.float32), y.astype(np.int64)
    train = torch.utils.data.DataLoader(Digits(x[:1500], y[:1500]), 100, shuffle=True, num_workers=WORKERS)
    return Data(train, torch.utils.data.TensorDataset(torch.from_numpy(x[1500:]), torch.from_numpy(y[1500:])))
"""


@pytest.fixture
def with_loader(mlp):
    text = mlp.read_text()
    start, end = text.index("def data():"), text.index("\n\nrecipe =")
    mlp.write_text(text[:start] + RECIPE_DATA.replace("WORKERS", "2") + text[end:])
    return mlp


def test_a_training_with_workers_goes_on_in_the_middle_of_an_epoch(with_loader, tmp_path):
    settings = Settings(Level.FP16_MASTER, 2, save_every=4)
    whole = Training(load_recipe(with_loader), tmp_path / "whole", settings)
    list(whole.steps())
    whole.finish()
    training = Training(load_recipe(with_loader), tmp_path / "halves", settings)
    assert len(list(islice(training.steps(), 22))) == 22
    training = Training(load_recipe(with_loader), tmp_path / "halves", settings, resume=True)
    assert training.steps_left == 10
    list(training.steps())
    training.finish()
    for name in ("model.pt", "best.pt", "telemetry.jsonl"):
        assert (tmp_path / "halves" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with_loader.write_text(with_loader.read_text().replace("num_workers=2", "num_workers=0"))
    alone = Training(load_recipe(with_loader), tmp_path / "alone", settings)
    list(alone.steps())
    alone.finish()
    one, two = (load_checkpoint(tmp_path / name / "model.pt").weights for name in ("whole", "alone"))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def test_a_mistake_in_a_worker_is_told_as_the_recipes(with_loader, tmp_path):
    with_loader.write_text(
        with_loader.read_text().replace("import random\n", "import random\n        1 / (index - 77)\n")
    )
    with pytest.raises(UsageError, match=r"the recipe fails when it loads its data: ZeroDivisionError"):
        list(Training(load_recipe(with_loader), tmp_path / "run", Settings(Level.FP32, 1)).steps())


def test_another_batch_size_is_refused(with_loader, tmp_path):
    with_loader.write_text(with_loader.read_text().replace("batch_size=100", "batch_size=50"))
    with pytest.raises(UsageError, match="batch_size of 100, the recipe one of 50"):
        Training(load_recipe(with_loader), tmp_path / "run", Settings(Level.FP32, 1))


def test_a_worker_that_is_killed_is_told_and_the_training_goes_on(with_loader, tmp_path):
    text = with_loader.read_text()
    fall = "import os, random\n        os.environ.get('FALL') and index == 777 and os.kill(os.getpid(), 9)\n"
    with_loader.write_text(text.replace("import random\n", fall))

    def train(folder, *words, **env):
        command = [sys.executable, "-m", "mpdeploy", "train", with_loader, "-o", tmp_path / folder, "-q", *words]
        return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)

    words = ("--epochs", "2", "--save-every", "2")
    assert train("whole", *words).returncode == 0
    done = train("run", *words, FALL="1")
    assert (done.returncode, done.stderr.count("\n")) == (DependencyError.exit_code, 1), done.stderr
    assert "a process that loads data has ended" in done.stderr
    assert "the same command with --resume goes on after step" in done.stderr
    assert train("run", *words, "--resume").returncode == 0
    assert (tmp_path / "run" / "model.pt").read_bytes() == (tmp_path / "whole" / "model.pt").read_bytes()
