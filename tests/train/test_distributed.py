"""Two processes under torchrun, on gloo, against one process."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from mpdeploy.amp import Level
from mpdeploy.errors import ModelError, UsageError
from mpdeploy.source.loading import load_state
from mpdeploy.train.checkpoint import load_checkpoint
from mpdeploy.train.loading import load_recipe
from mpdeploy.train.loop import Settings, Training
from mpdeploy.train.shard_reader import SafeReader
from mpdeploy.train.world import World

HERE = Path(__file__).parent
EPOCHS = 2


CASES = [("ddp", "fp32", 1e-4), ("ddp", "bf16-master", 2e-2), ("fsdp", "bf16-master", 2e-2), ("fsdp", "fp32", 1e-4)]


@pytest.fixture(scope="module")
def plain(mlp_text, tmp_path_factory):
    """A recipe without what is random or decided by the batch alone, so that two halves of it are one whole."""
    path = tmp_path_factory.mktemp("recipe") / "my_mlp.py"
    path.write_text(mlp_text.replace("nn.BatchNorm1d(32)", "nn.LayerNorm(32)").replace("nn.Dropout(0.1), ", ""))
    return path


@pytest.fixture(scope="module")
def together(plain, tmp_path_factory):
    """The folder in which two processes did all trainings of this file, in one go for all workers of pytest."""
    own = tmp_path_factory.getbasetemp()
    out = (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / "together"
    with FileLock(f"{out}.lock"):
        if not (out / "0.json").exists():
            train_together(plain, out)
    return out


def train_together(plain: Path, out: Path) -> None:
    out.mkdir()
    # One example gives an infinite gradient, in the process whose share it falls to.
    marked = plain.with_name("marked.py")
    marked.write_text(plain.read_text().replace("y.astype(np.int64)", "y.astype(np.int64)\n    x[7, 0] = np.inf"))
    jobs = [(str(marked), "marked", "fp16-mixed", "ddp", 0, False)]
    for sharding, level, _ in CASES:
        name = f"{sharding}-{level}"
        jobs += [
            (str(plain), f"{name}/whole", level, sharding, 0, False),
            (str(plain), f"{name}/halves", level, sharding, 20, False),
            (str(plain), f"{name}/halves", level, sharding, 0, True),
        ]
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    words += ["--log-dir", str(out / "log"), "--redirects", "3", str(HERE / "together.py"), str(out), json.dumps(jobs)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240)
    logs = "".join(path.read_text() for path in (out / "log").rglob("std*.log"))
    assert done.returncode == 0, done.stderr + logs


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


@pytest.mark.parametrize(("sharding", "level", "tolerance"), CASES)
def test_two_processes_train_what_one_does_and_resume_bit_for_bit(
    plain, together, tmp_path, sharding, level, tolerance
):
    folder = together / f"{sharding}-{level}"
    one = alone(plain, tmp_path, Level.named(level))
    whole, halves = (load_checkpoint(folder / name / "model.pt") for name in ("whole", "halves"))
    assert_close(one, whole, tolerance)
    assert whole.record == halves.record
    assert all(torch.equal(tensor, halves.weights[name]) for name, tensor in whole.weights.items())
    for name in ("telemetry.jsonl", "best.pt"):
        assert (folder / "whole" / name).read_bytes() == (folder / "halves" / name).read_bytes()


@pytest.mark.parametrize("level", ["bf16-master", "fp32"])
def test_a_sharded_state_can_be_exported_from(plain, together, level):
    state = together / f"fsdp-{level}" / "whole" / "states" / "0000000030"
    assert {path.name for path in state.iterdir()} > {".metadata", "process-0.pt", "process-1.pt"}
    whole = load_checkpoint(together / f"fsdp-{level}" / "whole" / "model.pt")
    loaded = load_state(state.parent, plain)  # the newest of the states
    assert all(torch.equal(tensor, whole.weights[name]) for name, tensor in loaded.module.state_dict().items())
    assert loaded.record.metric == whole.record.metric


def test_all_processes_skip_a_step_that_one_of_them_cannot_take(together):
    first, second = (json.loads((together / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["skipped"] == second["skipped"]
    assert len(first["skipped"]["marked"]) == EPOCHS, "once in each epoch: 1500 examples are 15 batches of 100"
    assert first["agreed"] == [1, 0], "one process alone raised the flag"


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


def test_processes_together_print_one_document(mlp, tmp_path):
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    words += ["-m", "mpdeploy", "train", str(mlp), "--epochs", "1", "-o", str(tmp_path / "run"), "--json", "-q"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout)["record"]["steps_applied"] == 15
