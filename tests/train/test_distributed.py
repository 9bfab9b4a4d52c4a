"""Two processes under torchrun, on gloo, against one process."""

import json
import math
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mpdeploy.amp import Level
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.source import load_module
from mpdeploy.train.checkpoint import load_checkpoint
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training
from mpdeploy.train.shard_reader import SafeReader
from mpdeploy.train.world import World

HERE = Path(__file__).parent
EPOCHS = 2


@pytest.fixture
def plain(mlp):
    """The recipe without what is random or decided by the batch alone, so that two halves of it are one whole."""
    text = mlp.read_text()
    mlp.write_text(text.replace("nn.BatchNorm1d(32)", "nn.LayerNorm(32)").replace("nn.Dropout(0.1), ", ""))
    return mlp


def together(recipe, out, level, sharding, plan):
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    words += ["--log-dir", str(out / "log"), "--redirects", "3"]
    words += [str(HERE / "together.py"), str(recipe), str(out), level, sharding, json.dumps(plan)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    logs = "".join(path.read_text() for path in (out / "log").rglob("std*.log"))
    assert done.returncode == 0, done.stderr + logs
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


def alone(recipe, folder, level):
    training = Training(load_recipe(recipe), folder, Settings(level, EPOCHS, save_every=4, keep=2, look_every=5))
    list(training.steps())
    training.finish()
    return load_checkpoint(folder / "model.pt")


def assert_close(left, right, tolerance):
    assert left.weights.keys() == right.weights.keys()
    for name, tensor in left.weights.items():
        assert right.weights[name].dtype == torch.float32
        torch.testing.assert_close(right.weights[name], tensor, rtol=tolerance, atol=tolerance)
    assert right.record.metric == pytest.approx(left.record.metric, abs=0.02)
    for one, two in zip(left.record.history, right.record.history, strict=True):
        assert two.train_loss == pytest.approx(one.train_loss, rel=tolerance * 10)


@pytest.mark.parametrize(
    ("sharding", "level", "tolerance"),
    [
        ("ddp", "fp32", 1e-4),
        pytest.param("ddp", "bf16-master", 2e-2, marks=pytest.mark.slow),
        ("fsdp", "bf16-master", 2e-2),
        pytest.param("fsdp", "fp32", 1e-4, marks=pytest.mark.slow),
    ],
)
def test_two_processes_train_what_one_does_and_resume_bit_for_bit(plain, tmp_path, sharding, level, tolerance):
    one = alone(plain, tmp_path / "one", Level.named(level))
    plan = [("whole", 0, False), ("halves", 20, False), ("halves", 0, True)]
    together(plain, tmp_path, level, sharding, plan)
    whole, halves = (load_checkpoint(tmp_path / name / "model.pt") for name in ("whole", "halves"))
    assert_close(one, whole, tolerance)
    assert whole.record == halves.record
    assert all(torch.equal(tensor, halves.weights[name]) for name, tensor in whole.weights.items())
    for name in ("telemetry.jsonl", "best.pt"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "halves" / name).read_bytes()
    if sharding == "fsdp":
        state = tmp_path / "whole" / "states" / "0000000030"
        assert {path.name for path in state.iterdir()} > {".metadata", "process-0.pt", "process-1.pt"}
        loaded = load_module(state, plain)
        assert all(torch.equal(tensor, whole.weights[name]) for name, tensor in loaded.module.state_dict().items())
        assert loaded.record.metric == whole.record.metric


def test_all_processes_skip_a_step_that_one_of_them_cannot_take(plain, tmp_path):
    # The gradient is infinite in the process whose share holds the example with the marked pixel.
    plain.write_text(plain.read_text().replace("y.astype(np.int64)", "y.astype(np.int64)\n    x[7, 0] = np.inf"))
    first, second = together(plain, tmp_path, "fp16-mixed", "ddp", [("run", 0, False)])
    assert first == second
    assert len(first["skipped"]) == EPOCHS, "the bad example comes once in each epoch: 1500 examples, 15 batches of 100"
    assert math.isnan(first["agreed"]), "one process alone saw infinity"


def test_a_batch_must_be_divisible():
    with pytest.raises(UsageError, match="batch of 100 cannot be shared equally by 3"):
        World(0, 3).share(list(range(100)))
    assert [World(rank, 2).share([5, 6, 7, 8]) for rank in (0, 1)] == [[5, 7], [6, 8]]


def test_the_metadata_of_shards_cannot_run_code(tmp_path):
    class Plant:
        def __reduce__(self):
            return Path.touch, (tmp_path / "marker",)

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Plant()))
    with pytest.raises(ModelError, match="could run code"):
        SafeReader(tmp_path).read_metadata()
    assert not (tmp_path / "marker").exists()
    for content in (b"", b"x", pickle.dumps(3)):
        (tmp_path / ".metadata").write_bytes(content)
        with pytest.raises(UsageError, match="damaged"):
            SafeReader(tmp_path).read_metadata()
