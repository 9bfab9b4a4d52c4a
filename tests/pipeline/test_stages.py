"""Stages are done once, appear whole, and survive whatever happens to the ones that fail."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mpdeploy.errors import ModelError, UsageError
from mpdeploy.pipeline.stages import RECORD, digest_of, workshop


def writes(text, log=None):
    def make(work, final):
        if log is not None:
            log.append(text)
        (work / "inner").mkdir(exist_ok=True)
        (work / "inner" / "file").write_text(text)

    return make


def test_a_stage_is_done_once_for_equal_inputs(tmp_path):
    log: list[str] = []
    for _ in range(2):
        with workshop(tmp_path / "out") as shop:
            done = shop.done("mix", {"a": "1"}, writes("one", log))
    assert done.reused
    assert (done.folder / "inner" / "file").read_text() == "one"
    with workshop(tmp_path / "out") as shop:
        other = shop.done("mix", {"a": "2"}, writes("two", log))
        same_content = shop.done("mix", {"a": "3"}, writes("two", log))
    assert not other.reused
    assert other.folder != done.folder
    assert other.digest == same_content.digest != done.digest
    assert log == ["one", "two", "two"]


@pytest.mark.parametrize("damage", ["change", "add", "remove", "record"])
def test_a_stage_that_was_tampered_with_is_done_again(tmp_path, damage):
    with workshop(tmp_path) as shop:
        folder = shop.done("mix", {}, writes("one")).folder
    if damage == "change":
        (folder / "inner" / "file").write_text("two")
    elif damage == "add":
        (folder / "new").touch()
    elif damage == "remove":
        (folder / "inner" / "file").unlink()
    else:
        (folder / RECORD).write_text("{}")
    with workshop(tmp_path) as shop:
        again = shop.done("mix", {}, writes("one"))
    assert not again.reused
    assert {p.name for p in folder.rglob("*")} == {"inner", "file", RECORD}
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_a_stage_that_fails_leaves_the_others(tmp_path):
    def fails(work, final):
        (work / "half").write_text("x")
        raise ModelError("no")

    with workshop(tmp_path) as shop:
        shop.done("mix", {}, writes("one"))
        with pytest.raises(ModelError):
            shop.done("bake", {}, fails)
    with workshop(tmp_path) as shop:
        assert shop.done("mix", {}, writes("one")).reused
        baked = shop.done("bake", {}, writes("cake"))
        assert not (baked.folder / "half").exists(), "what failed is not mixed with what succeeds"


def test_only_a_stage_that_goes_on_finds_what_was_left(tmp_path):
    def stopped(work, final):
        (work / "state").write_text("half")
        (work / ".mpdeploy-1.part").write_text("being written")
        (work / ".mpdeploy-2.part").mkdir()
        raise KeyboardInterrupt

    with workshop(tmp_path) as shop:
        with pytest.raises(KeyboardInterrupt):
            shop.done("train", {}, stopped, goes_on=True)
        done = shop.done("train", {}, lambda work, final: None, goes_on=True)
    assert [p.name for p in done.folder.iterdir() if p.name != RECORD] == ["state"]


def test_links_switch_at_once_and_the_unused_goes(tmp_path):
    with workshop(tmp_path) as shop:
        first = shop.done("mix", {"a": "1"}, writes("one"))
        assert (shop.point("latest", first.folder) / "inner" / "file").read_text() == "one"
        shop.point("kept", first.folder / "inner")
    with workshop(tmp_path) as shop:
        second = shop.done("mix", {"a": "2"}, writes("two"))
        shop.done("other", {}, writes("three"))
        shop.point("latest", second.folder)
    (tmp_path / "stages" / f"{first.folder.name}.part").mkdir()
    with workshop(tmp_path) as shop:
        shop.done("mix", {"a": "2"}, writes("two"))
        shop.tidy()
    assert (tmp_path / "latest" / "inner" / "file").read_text() == "two"
    assert {p.name for p in (tmp_path / "stages").iterdir()} == {first.folder.name, second.folder.name}


def test_a_file_in_the_way_of_a_link_stays(tmp_path):
    (tmp_path / "latest").mkdir()
    with workshop(tmp_path) as shop:
        done = shop.done("mix", {}, writes("one"))
        with pytest.raises(UsageError, match="in the way"):
            shop.point("latest", done.folder)


def test_two_pipelines_in_one_folder(tmp_path):
    code = (
        "import sys, pathlib\nfrom mpdeploy.pipeline.stages import workshop\n"
        "from mpdeploy.errors import UsageError\n"
        "try:\n    with workshop(pathlib.Path(sys.argv[1])): print('in')\n"
        "except UsageError as error: print(error)\n"
    )
    with workshop(tmp_path):
        out = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True).stdout
    assert out.startswith("another pipeline is at work")


def test_a_full_disk_leaves_what_was_there(tmp_path):
    with workshop(tmp_path) as shop:
        shop.point("latest", shop.done("mix", {}, writes("one")).folder)

    def large(work, final):
        (work / "large").write_bytes(bytes(1 << 20))

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with workshop(tmp_path) as shop, pytest.raises(UsageError, match="cannot write the output"):
            shop.done("bake", {}, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "latest" / "inner" / "file").read_text() == "one"
    with workshop(tmp_path) as shop:
        assert shop.done("mix", {}, writes("one")).reused


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder(tmp_path):
    (tmp_path / "out").mkdir(mode=0o500)
    with pytest.raises(UsageError, match="cannot write the output"), workshop(tmp_path / "out"):
        pass


def test_a_place_where_no_folder_can_be(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot write the output"), workshop(tmp_path / "file" / "out"):
        pass
    with pytest.raises(UsageError, match="cannot write the output"), workshop(Path("/proc/out")):
        pass


def test_digests(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("1")
    before = digest_of(tmp_path / "a")
    (tmp_path / "a" / "x").rename(tmp_path / "a" / "y")
    assert digest_of(tmp_path / "a") != before
    assert digest_of(tmp_path / "a" / "y") == digest_of(tmp_path / "a" / "y")
