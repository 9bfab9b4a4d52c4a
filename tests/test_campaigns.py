"""The scripts that break files and kill commands: a short run of each finds nothing."""

import random
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


def run(*words):
    return subprocess.run(
        [sys.executable, str(SCRIPTS / words[0]), *words[1:]], capture_output=True, text=True, check=False, timeout=600
    )


@pytest.mark.long
def test_thirty_broken_files():
    done = run("fuzz_files.py", "--files", "30", "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1].split()
    assert last[:2] == ["all", "30"]


@pytest.mark.long
def test_a_kill():
    done = run("kill_commands.py", "--kills", "1", "--command", "run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].split()[2] == "1"


@pytest.fixture
def broken(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import broken

    return broken


def test_a_way_to_break_a_file_is_decided_by_its_seed(broken, tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.arange(40.0), y=np.arange(3))
    content = path.read_bytes()
    for way in broken.ways(path):
        once, again = (way(content, random.Random(3)) for _ in range(2))
        if way not in (broken.entry_broken, broken.bomb):  # an archive holds the time when it was written
            assert once == again
    assert zipfile.is_zipfile(path)
    changes = [way(content, random.Random(seed)) != content for way in broken.ways(path) for seed in range(5)]
    assert sum(changes) > len(changes) * 0.9


def test_a_document_stays_one_whatever_is_changed_in_it(broken):
    import json

    for seed in range(200):
        json.loads(broken.value_changed(b'{"a": [1, {"b": "c"}], "d": null}', random.Random(seed)))
