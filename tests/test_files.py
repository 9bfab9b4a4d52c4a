"""Files appear whole or not at all; an existing one survives every failure."""

import hashlib
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpdeploy import files
from mpdeploy.errors import UsageError
from mpdeploy.scratch import scratch_folder


class BrokenError(Exception):
    pass


def test_a_file_appears_whole(tmp_path):
    target = tmp_path / "deep" / "er" / "out.txt"
    with files.atomic_path(target) as scratch:
        scratch.write_text("new")
        assert not target.exists()
        assert scratch.is_relative_to(target.parent)  # the same file system, so that the last step is one rename
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("error", [BrokenError(), KeyboardInterrupt(), SystemExit(3), MemoryError()])
def test_whatever_fails_the_old_file_stays(tmp_path, error):
    target = tmp_path / "out.txt"
    target.write_text("old")

    def fail():
        with files.atomic_path(target) as scratch:
            scratch.write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_nothing_written_is_a_fault_and_keeps_the_old_file(tmp_path):
    target = tmp_path / "out.txt"
    target.write_text("old")
    with pytest.raises(UsageError), files.atomic_path(target):
        pass
    assert target.read_text() == "old"


def test_folders_in_the_way(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="existing folder"):
        files.write_text(tmp_path / "folder", "x")
    (tmp_path / "file").write_text("old")
    with pytest.raises(UsageError, match="cannot write the output"):
        files.write_text(tmp_path / "file" / "below", "x")
    with pytest.raises(UsageError, match="existing file"), files.atomic_folder(tmp_path / "file"):
        pass
    with pytest.raises(UsageError, match="cannot write the output"), files.atomic_folder(tmp_path / "file" / "below"):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_a_name_too_long_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="cannot write the output: File name too long"):
        files.write_text(tmp_path / ("n" * 300), "x")
    # A legal name must not become illegal by what is put around it while it is written.
    files.write_text(tmp_path / ("n" * 255), "x")
    assert len(list(tmp_path.iterdir())) == 1


def test_folders_that_cannot_be_written():
    for place in ("/proc/nothing", "/dev/null/below", "/sys/kernel/out"):
        with pytest.raises(UsageError, match="cannot write the output"):
            files.write_text(Path(place), "x")


def test_a_folder_appears_whole_and_replaces_the_old_one(tmp_path):
    target = tmp_path / "folder"
    for content in ("one", "two"):
        with files.atomic_folder(target) as scratch:
            (scratch / content).write_text(content)
    assert [p.name for p in target.iterdir()] == ["two"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [BrokenError(), KeyboardInterrupt()])
def test_a_folder_that_fails_leaves_the_old_one(tmp_path, error):
    target = tmp_path / "folder"
    target.mkdir()
    (target / "old").write_text("old")

    def fail():
        with files.atomic_folder(target) as scratch:
            (scratch / "new").write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert [p.name for p in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


def test_permissions_are_those_of_any_new_file(tmp_path):
    files.write_text(tmp_path / "ours", "x")
    (tmp_path / "plain").write_text("x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_full_disk_is_a_usage_error_and_leaves_nothing(tmp_path):
    """A limit on the size of files stands in for the full disk: the kernel's answer comes at the same place."""
    target = tmp_path / "out.bin"
    target.write_bytes(b"old")
    program = (
        "import signal, resource, sys\n"
        "from pathlib import Path\n"
        "from mpdeploy import files\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    files.write_bytes(Path(sys.argv[1]), bytes(5000))\n"
        "except files.UsageError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(target)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("cannot write the output: File too large")
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


def test_dev_full_says_no_space(tmp_path):
    def fill():
        with files.atomic_path(tmp_path / "out") as scratch:
            scratch.symlink_to("/dev/full")
            scratch.write_bytes(bytes(100))

    with pytest.raises(UsageError, match="No space left on device") as caught:
        fill()
    assert "free some space" in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_readable_file(tmp_path):
    good, empty = tmp_path / "good", tmp_path / "empty"
    good.write_text("x")
    empty.touch()
    assert files.readable_file(good, "model") is good
    for path, says in [(empty, "model is empty"), (tmp_path, "is a folder"), (tmp_path / "none", "model not found")]:
        with pytest.raises(UsageError, match=says):
            files.readable_file(path, "model")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    with pytest.raises(UsageError, match="not found"):
        files.readable_file(tmp_path / "dangling", "model")


@pytest.mark.timeout(20)
def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        files.readable_file(tmp_path / "pipe", "model")


def test_sha256_of_a_large_file(tmp_path):
    content = os.urandom((1 << 20) + 7)
    (tmp_path / "file").write_bytes(content)
    assert files.sha256_of(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_no_output_takes_the_place_of_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match=r"device or a pipe.*pipe"):
        files.write_text(pipe, "text")
    with pytest.raises(UsageError, match=r"device or a pipe.*pipe"), files.atomic_folder(pipe):
        pass
    assert pipe.is_fifo()


def test_a_signal_while_the_scratch_folder_is_cleared_leaves_nothing(tmp_path, monkeypatch):
    real, calls = shutil.rmtree, []

    def interrupted(folder, **words):
        calls.append(folder)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real(folder, **words)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), scratch_folder(tmp_path) as folder:
        (folder / "large").write_bytes(b"x")
    assert list(tmp_path.iterdir()) == []
