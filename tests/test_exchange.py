"""Folders are exchanged whole; what killed processes leave is swept, or finished, by the next one that writes there."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mpdeploy import exchange, files, scratch

HOLDS = """
import sys, time
from pathlib import Path
from mpdeploy import files
with files.atomic_path(Path(sys.argv[1])) as scratch:
    scratch.write_bytes(bytes(1000))
    print("ready", flush=True)
    time.sleep(600)
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def hidden(folder):
    return [path for path in folder.rglob("*") if scratch.is_scratch(path)]


def write(folder, content, owns=None):
    with files.atomic_folder(folder) if owns is None else files.atomic_folder(folder, owns) as new:
        for name in content:
            (new / name).write_text("new")


def test_a_killed_process_leaves_what_the_next_writer_sweeps(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        files.write_text(tmp_path / "other", "x")
        assert hidden(tmp_path), "a scratch folder whose process lives was taken from it"
    finally:
        process.kill()
        process.communicate()
    assert hidden(tmp_path)
    files.write_text(tmp_path / "other", "x")
    assert names(tmp_path) == ["other"]


def test_only_what_is_ours_is_swept(tmp_path):
    (tmp_path / ".mpdeploy-0123.part").write_text("of an earlier version")
    strangers = [".mpdeploy.part", ".other-1.part", "mpdeploy-1.part", ".mpdeploy-1.partial"]
    for name in strangers:
        (tmp_path / name).write_text("x")
    (tmp_path / "precious").write_text("x")
    (tmp_path / ".mpdeploy-2.part").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / ".mpdeploy-3.part")
    files.write_text(tmp_path / "out", "x")
    assert {*strangers, "precious", "out"} <= set(names(tmp_path))
    assert not (tmp_path / ".mpdeploy-0123.part").exists()
    assert (tmp_path / "precious").read_text() == "x"


def test_a_folder_is_always_there_and_never_shows_files_of_two_runs(tmp_path):
    """Somebody looks while it is exchanged again and again."""
    target = tmp_path / "out"
    write(target, ["a", "b"])
    looker = (
        "import os, sys\n"
        "while os.path.exists(sys.argv[2]):\n"
        "    found = set(os.listdir(sys.argv[1]))\n"
        "    assert found <= {'a', 'b'} or found <= {'c', 'd'}, found\n"
    )
    flag = tmp_path / "flag"
    flag.touch()
    process = subprocess.Popen([sys.executable, "-c", looker, str(target), str(flag)], stderr=subprocess.PIPE)
    for number in range(60):
        write(target, ["c", "d"] if number % 2 else ["a", "b"])
    flag.unlink()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()


OURS = {"report.html", "report.json", "report.svg"}


def test_files_of_others_stay(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "thesis.tex").write_text("mine")
    (target / "data").mkdir()
    (target / "data" / "1").write_text("mine")
    (target / "report.svg").write_text("old")
    (target / "report.json").write_text("old")
    write(target, ["report.json", "report.html"], OURS.__contains__)
    assert names(target) == ["data", "report.html", "report.json", "thesis.tex"]
    assert (target / "report.json").read_text() == "new"
    assert (target / "data" / "1").read_text() == "mine"
    assert names(tmp_path) == ["out"]


def test_the_folder_in_which_a_shell_stands_stays_that_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = tmp_path.stat().st_ino
    write(Path(), ["a"])
    write(Path(), ["b"])
    assert tmp_path.stat().st_ino == before
    assert names(tmp_path) == ["b"]


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link", ["a"])
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == ["a"]


def test_without_an_exchange_two_renames_do(tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "_RENAME_EXCHANGE", 1 << 20)  # a flag that no kernel knows: the answer of an old one
    target = tmp_path / "out"
    for content in (["a"], ["b"]):
        write(target, content)
        assert names(target) == content
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_what_was_being_moved_when_its_process_was_killed_is_moved(tmp_path, moved):
    """The state on disk after each of the moves."""
    target = tmp_path / "out"
    target.mkdir()
    for name in ("one", "two", "gone"):
        (target / name).write_text("old")
    left = target / ".mpdeploy-00.part"
    (left / "new").mkdir(parents=True)
    for number, name in enumerate(("one", "two")):
        (target / name if number < moved else left / "new" / name).write_text("new")
    scratch.Moves("", ["one", "two"], ["gone"]).note(left)
    files.write_text(target / "other", "x")
    assert names(target) == ["one", "other", "two"]
    assert {(target / name).read_text() for name in ("one", "two")} == {"new"}


def test_the_old_folder_was_away_when_its_process_was_killed(tmp_path):
    left = tmp_path / ".mpdeploy-00.part"
    (left / "new" / "out").mkdir(parents=True)
    (left / "new" / "out" / "a").write_text("new")
    (left / "old" / "out").mkdir(parents=True)
    scratch.Moves("", ["out"], []).note(left)
    files.write_text(tmp_path / "other", "x")
    assert names(tmp_path) == ["other", "out"]
    assert names(tmp_path / "out") == ["a"]


@pytest.mark.parametrize(
    "moves",
    [
        {"into": "../..", "names": ["x"], "stale": []},
        {"into": "", "names": ["../x"], "stale": []},
        {"into": "", "names": [], "stale": ["../precious"]},
        {"into": "", "names": [".."], "stale": []},
        {"into": 1, "names": [2], "stale": 3},
        [],
        {"a": 1},
    ],
)
def test_a_list_of_moves_from_a_stranger_moves_nothing_elsewhere(tmp_path, moves):
    (tmp_path / "precious").write_text("x")
    home = tmp_path / "home"
    left = home / ".mpdeploy-00.part"
    (left / "new").mkdir(parents=True)
    (left / "new" / "x").write_text("x")
    (left / "moves.json").write_text(json.dumps(moves))
    files.write_text(home / "other", "x")
    assert names(home) == ["other"]
    assert names(tmp_path) == ["home", "precious"]


def test_two_at_a_time_do_not_sweep_each_other(tmp_path):
    with files.atomic_path(tmp_path / "one") as first, files.atomic_path(tmp_path / "two") as second:
        first.write_text("1")
        second.write_text("2")
        time.sleep(0)
    assert names(tmp_path) == ["one", "two"]
