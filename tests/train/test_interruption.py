"""A training that is killed at any moment, resumed, and killed again ends bit for bit like one that was not."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mpdeploy.amp import Level
from mpdeploy.train.checkpoint import load_checkpoint
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training
from mpdeploy.train.states import newest
from mpdeploy.train.telemetry_file import read_telemetry

# Draws from every kind of random numbers in training, and keeps an average of the weights.
_NOISE = """
def noisy():
    import random

    class Noise(nn.Module):
        def forward(self, x):
            if not self.training:
                return x
            scale = 1 + 0.1 * random.random() + 0.1 * np.random.rand()
            return x * scale + 0.1 * torch.randn_like(x)

    return nn.Sequential(Noise(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))
"""
EPOCHS = 4


@pytest.fixture
def noisy(mlp):
    text = mlp.read_text().replace("\n\nrecipe = Recipe(", _NOISE + "\n\nrecipe = Recipe(    ema_decay=0.9,")
    start = text.index("    model=lambda:")
    mlp.write_text(text[:start] + "    model=noisy,\n" + text[text.index("    data=data") :])
    return mlp


def train(recipe: Path, folder: Path, level: Level) -> None:
    """Train to the end, from where the folder's newest state stands; slowly, so that there is time to be killed."""
    torch.set_num_threads(1)
    settings = Settings(level, EPOCHS, save_every=3, keep=2, look_every=5)
    resume = newest(folder / "states") is not None
    training = Training(load_recipe(recipe), folder, settings, resume=resume)
    for _ in training.steps():
        time.sleep(0.004)
    training.finish()


_LOADER = """
    from torch.utils.data import DataLoader, TensorDataset
    train = TensorDataset(torch.from_numpy(x[:1500]), torch.from_numpy(y[:1500]))
    return Data(DataLoader(train, 100, shuffle=True, num_workers=2), Arrays((x[1500:],), y[1500:]))
"""


@pytest.mark.parametrize(
    ("level", "workers"),
    [
        (Level.BF16_MASTER, False),
        (Level.FP16_MIXED, False),
        pytest.param(Level.FP16_MASTER, True, marks=pytest.mark.long),
    ],
)
def test_killed_at_any_moment_it_ends_bit_for_bit_the_same(noisy, tmp_path, level, workers):
    if workers:
        text = noisy.read_text()
        start, end = text.index("    return Data("), text.index("def noisy")
        noisy.write_text(text[:start] + _LOADER.strip("\n") + "\n\n\n" + text[end:])
    train(noisy, tmp_path / "whole", level)

    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["mpdeploy.train.loop", "sklearn.datasets"])
    folder = tmp_path / "killed"
    moments = random.Random(4)
    kills = 0
    while True:
        process = processes.Process(target=train, args=(noisy, folder, level))
        process.start()
        if kills < 8:
            while newest(folder / "states") is None and process.is_alive():
                time.sleep(0.001)
            process.join(moments.uniform(0.0, 0.35))
            os.kill(process.pid, signal.SIGKILL)
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert kills >= 4, "it was too fast to be killed often"

    for name in ("model.pt", "best.pt", "telemetry.jsonl"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    states = [sorted(path.name for path in (tmp_path / name / "states").iterdir()) for name in ("whole", "killed")]
    assert states[0] == states[1] == ["0000000057.pt", "0000000060.pt"], "nothing half-written is left either"
    _, lines = read_telemetry(folder / "telemetry.jsonl")
    assert [line.step for line in lines if line.sample] == list(range(0, EPOCHS * 15, 5))


def test_the_last_states_and_the_best_checkpoint_are_kept(mlp, tmp_path):
    training = Training(load_recipe(mlp), tmp_path, Settings(Level.FP32, 3, save_every=4, keep=3))
    list(training.steps())
    record = training.finish()
    assert [int(path.stem) for path in sorted((tmp_path / "states").iterdir())] == [40, 44, 45]
    best = load_checkpoint(tmp_path / "best.pt").record
    assert best.metric == max(epoch.metric for epoch in record.history)
    assert best.history == record.history[: len(best.history)]
    # An older state serves as well: take the newest one away.
    (tmp_path / "states" / "0000000045.pt").unlink()
    again = Training(load_recipe(mlp), tmp_path, Settings(Level.FP32, 3, save_every=4, keep=3), resume=True)
    assert again.steps_left == 1
    list(again.steps())
    assert again.finish() == record


@pytest.mark.parametrize("kind", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_saves_and_stops(noisy, tmp_path, kind):
    folder = tmp_path / "run"
    words = [sys.executable, "-m", "mpdeploy", "train", str(noisy), "--epochs", "60", "-o", str(folder)]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not (folder / "best.pt").exists():
        time.sleep(0.02)
        assert process.poll() is None, process.stderr.read()
    process.send_signal(kind)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + kind, "")
    stopped = int(err.partition("stopped after step ")[2].partition(";")[0])
    assert newest(folder / "states").stem == f"{stopped + 1:010}"
    assert "--resume goes on from there" in err
    settings = Settings(load_recipe(noisy).recipe.level, 60)
    assert Training(load_recipe(noisy), folder, settings, resume=True).steps_left == 60 * 15 - stopped - 1


def begun(recipe: Path, folder: Path, steps: int) -> Training:
    """A new training in the folder, of one epoch, that has gone so many steps."""
    training = Training(load_recipe(recipe), folder, Settings(Level.FP32, 1, save_every=1))
    for step in training.steps():
        if step.step >= steps:
            break
    return training


def test_a_new_training_sets_the_states_of_an_interrupted_one_aside(mlp, tmp_path):
    whole = begun(mlp, tmp_path, 3).total_steps
    third = newest(tmp_path / "states").read_bytes()
    again = begun(mlp, tmp_path, whole)
    assert again.set_aside == tmp_path / "states.before"
    assert newest(again.set_aside).read_bytes() == third
    # This one came to its end: nothing is lost with its states, and what was set aside stays.
    last = begun(mlp, tmp_path, 0)
    assert last.set_aside is None
    assert newest(tmp_path / "states.before").read_bytes() == third
