"""A disk that is full at any write of a training: one line, exit code 2, and with --resume nothing is lost."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mpdeploy.cli import main
from mpdeploy.train.states import newest

PAGE = 4096
ROOM = 1 << 14  # pages that hold all of it
WORDS = ("--epochs", "2", "--save-every", "4", "--look-every", "3", "-q", "--report")
FILES = ("model.pt", "best.pt", "telemetry.jsonl", "heldout/0002.npz", "calibration/0002.npz")


def train(recipe: Path, folder: Path, *words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["train", str(recipe), "-o", str(folder), *WORDS, *words])
    return caught.value.code


def mount(folder: Path, pages: int, option: str = "") -> None:
    words = ["mount", "-t", "tmpfs", "-o", f"{option}size={pages * PAGE}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(words, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip("only the superuser may mount")


@pytest.fixture
def disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount(folder, ROOM)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.long
def test_a_full_disk_costs_nothing_but_the_steps_since_the_last_state(mlp, tmp_path, disk, capsys):
    whole = tmp_path / "whole"
    assert train(mlp, whole) == 0
    met, pages = set(), 2
    while True:
        folder = disk / str(pages)
        mount(disk, pages, "remount,")
        capsys.readouterr()
        if train(mlp, folder) == 0:
            break
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        place, told = re.search(r"No space left on device \[(.+)\]; free some space .*; (.+)$", err).groups()
        begun = newest(folder / "states")
        assert ("--resume goes on after step" in told) == (begun is not None)
        assert not [path for path in folder.rglob("*") if path.suffix == ".part" or path.name == ".lock"]
        mount(disk, ROOM, "remount,")
        name = Path(place).relative_to(folder).parts[0]
        if name not in met:
            met.add(name)
            assert train(mlp, folder, *(["--resume"] if begun else [])) == 0
            assert all((folder / name).read_bytes() == (whole / name).read_bytes() for name in FILES)
        shutil.rmtree(folder)
        pages += 1
    assert met >= {"states", "training.json", "telemetry.jsonl", "heldout", "calibration", "model.pt"}


def test_an_interrupted_training_survives_one_that_cannot_begin(mlp, disk, capsys):
    assert train(mlp, disk / "run") == 0
    states = disk / "run" / "states"
    (states / "0000000030.pt").rename(states / "0000000012.pt")  # as if it had been interrupted there
    before = (states / "0000000012.pt").read_bytes()
    used = sum(-(-path.stat().st_size // PAGE) for path in disk.rglob("*") if path.is_file())
    mount(disk, used + 2, "remount,")
    assert train(mlp, disk / "run") == 2
    assert "No space left" in capsys.readouterr().err
    assert (states / "0000000012.pt").read_bytes() == before
    assert not (disk / "run" / "states.before").exists()
