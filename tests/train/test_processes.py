"""Several processes that train together: one is killed, one fails alone, their number changes, one sees infinity."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mpdeploy.train.checkpoint import load_checkpoint
from mpdeploy.train.states import newest

# What a process does at a step is said from outside: the recipe is one and the same.
HOOK = """
import os
import signal


def told(step, loss):
    what, rank, at = os.environ.get("DO", "no 0 0").split()
    if os.environ.get("RANK", "0") == rank and at in (str(step), "any"):
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "fail":
            raise ValueError("this process alone is out of luck")
        if what == "hang":
            os.kill(os.getpid(), signal.SIGSTOP)


recipe = Recipe(
    on_step_end=told,"""


@pytest.fixture
def plain(mlp):
    """A recipe in which two halves of a batch are one whole."""
    text = mlp.read_text().replace("nn.BatchNorm1d(32)", "nn.LayerNorm(32)").replace("nn.Dropout(0.1), ", "")
    mlp.write_text(text.replace("\nrecipe = Recipe(", HOOK))
    return mlp


def start(count: int, *words: object, do: str = "no 0 0", script: str = "") -> list[subprocess.Popen]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = (
        script
        or "import torch; torch.set_num_threads(1); from mpdeploy.cli import main; import sys; main(sys.argv[1:])"
    )
    processes = []
    for rank in range(count):
        world = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "DO": do}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)} if count > 1 else {}
        command = [sys.executable, "-c", begin, "train", *(str(word) for word in words), "-q"]
        processes.append(
            subprocess.Popen(
                command, env={**os.environ, **world, **place}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    return processes


def together(count: int, *words: object, do: str = "no 0 0", script: str = "") -> list[tuple[int, str]]:
    """The exit code and standard error of each."""
    ended = [(process, process.communicate(timeout=120)) for process in start(count, *words, do=do, script=script)]
    return [(process.returncode, err) for process, (_, err) in ended]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder / "model.pt").weights


@pytest.mark.long
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_a_killed_process_is_told_by_the_other_and_resume_ends_bit_for_bit_the_same(plain, tmp_path, sharding):
    words = [plain, "--epochs", 1, "--save-every", 4, "--sharding", sharding, "-o"]
    assert [code for code, _ in together(2, *words, tmp_path / "whole")] == [0, 0]
    folder = tmp_path / "killed"
    (code, err), (killed, _) = together(2, *words, folder, do="kill 1 7")
    assert (code, killed) == (4, -9)
    assert err.count("\n") == 1, err
    assert "another process of this training has ended or does not answer" in err
    assert "the same command with --resume goes on after step 4" in err
    assert [code for code, _ in together(2, *words, folder, "--resume")] == [0, 0]
    for name in ("model.pt", "telemetry.jsonl"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.long
def test_a_process_that_fails_alone_ends_the_job_with_its_message(plain, tmp_path):
    # It used to wait for the others, which waited for it.  (G11)
    words = [plain, "--epochs", 1, "-o", tmp_path / "run"]
    (code, err), (failed, reason) = together(2, *words, do="fail 1 3")
    assert (failed, reason.count("\n")) == (2, 1)
    assert "fails in its on_step_end: ValueError: this process alone is out of luck" in reason
    assert (code, err.count("\n")) == (4, 1), err
    assert "another process of this training has ended" in err


@pytest.mark.long
def test_a_process_that_does_not_answer_is_lost_after_a_while(plain, tmp_path):
    script = (
        "import datetime, sys, torch; torch.set_num_threads(1); from mpdeploy.train import world; "
        "wait = datetime.timedelta(seconds=3); own = world.join; "
        "world.join = lambda device=None: own(device, wait); from mpdeploy.cli import main; main(sys.argv[1:])"
    )
    one, other = start(2, plain, "--epochs", 1, "-o", tmp_path / "run", do="hang 1 3", script=script)
    _, err = one.communicate(timeout=120)
    other.kill()
    other.communicate()
    assert (one.returncode, err.count("\n")) == (4, 1), err
    assert "has ended or does not answer" in err
    assert "--resume" in err


@pytest.mark.long
def test_a_training_goes_on_with_another_number_of_processes(plain, tmp_path):
    # Without a schedule: one that spans the training would differ by its length.
    lines = [line for line in plain.read_text().splitlines() if not line.startswith("    schedule=")]
    plain.write_text("\n".join(lines))

    def run(count, epochs, folder, *more):
        ended = together(count, plain, "--epochs", epochs, "--precision", "fp32", "-o", tmp_path / folder, *more)
        assert [code for code, _ in ended] == [0] * count, ended

    run(1, 3, "whole")
    run(2, 1, "ddp")
    run(1, 2, "ddp", "--resume")
    run(2, 3, "ddp", "--resume", "--sharding", "fsdp")
    run(2, 1, "fsdp", "--sharding", "fsdp")
    run(4, 2, "fsdp", "--sharding", "fsdp", "--resume")
    run(1, 3, "fsdp", "--resume")
    whole = weights(tmp_path / "whole")
    for folder in ("ddp", "fsdp"):
        for name, tensor in weights(tmp_path / folder).items():
            torch.testing.assert_close(tensor, whole[name], rtol=1e-3, atol=1e-3)
    sessions = json.loads((tmp_path / "fsdp" / "training.json").read_text())["sessions"]
    assert [session["processes"] for session in sessions] == [2, 4, 1]


@pytest.mark.long
@pytest.mark.parametrize("level", ["fp32", "bf16-master"])
def test_processes_that_take_a_batch_in_parts_learn_what_one_does(plain, tmp_path, level):
    # Their gradients are added up once a step, with the last part's.  (C12)
    words = [plain, "--epochs", 1, "--precision", level, "-o"]
    assert [code for code, _ in together(1, *words, tmp_path / "one")] == [0]
    assert [code for code, _ in together(2, *words, tmp_path / "two", "--accumulate", 5)] == [0, 0]
    tolerance = 1e-3 if level == "fp32" else 3e-2
    for name, tensor in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], tensor, rtol=tolerance, atol=tolerance)


@pytest.mark.long
def test_fsdp_skips_a_step_on_all_processes_that_one_of_them_cannot_take(plain, tmp_path):
    text = plain.read_text().replace("y.astype(np.int64)", "y.astype(np.int64)\n    x[7, 0] = np.inf")
    plain.write_text(text)
    ended = together(
        2, plain, "--epochs", 2, "--precision", "fp16-mixed", "--sharding", "fsdp", "-o", tmp_path / "run", "--json"
    )
    assert [code for code, _ in ended] == [0, 0], ended
    record = json.loads((tmp_path / "run" / "training.json").read_text())
    assert (record["steps_applied"], record["steps_skipped"]) == (28, 2)
    assert newest(tmp_path / "run" / "states").name == f"{30:010}"


@pytest.mark.long
def test_two_trainings_in_one_folder_are_refused(plain, tmp_path):
    folder = tmp_path / "run"
    first = subprocess.Popen(
        [sys.executable, "-m", "mpdeploy", "train", plain, "--epochs", "200", "-o", folder, "-q"],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (folder / "best.pt").exists():
        assert first.poll() is None, first.stderr.read()
    (second,) = together(1, plain, "-o", folder)
    assert second[0] == 2
    assert second[1].count("\n") == 1
    assert "another training is at work in this folder" in second[1]
    first.kill()
    first.communicate()
    # The lock went with the process that held it.
    ((code, err),) = together(1, plain, "-o", folder, "--resume", do="fail 0 any")
    assert (code, "out of luck" in err) == (2, True), err
    assert not (folder / ".lock").exists()
