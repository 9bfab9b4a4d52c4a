"""Archives that lie are refused before anything in them is read."""

import io
import stat
import struct
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch
from torch._C import PyTorchFileReader

from mpdeploy import archive as archives
from mpdeploy.archive import MAX_RATIO, check_archive
from mpdeploy.errors import UsageError
from mpdeploy.source.kinds import kind_of
from mpdeploy.source.program import load_program

VERSION = ("m/version", b"3")  # torch reads no archive without


def archive(path, *entries, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as out:
        for name, content in entries:
            out.writestr(name, content)
    return path


def test_a_sound_archive_tells_its_names(tmp_path):
    entries = [("m/data.pkl", b"x" * 10), ("m/data/0", bytes(1000))]
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path = archive(tmp_path / "a.zip", *entries, compression=compression)
        assert check_archive(path) == ("m/data.pkl", "m/data/0")


@pytest.mark.parametrize("name", ["/etc/passwd", "../out", "m/../../out", "m\\..\\out", "C:/out"])
def test_names_that_point_outside(tmp_path, name):
    path = archive(tmp_path / "a.zip", (name, b"x"))
    with pytest.raises(UsageError, match=r"points outside.*do not load it"):
        check_archive(path)


def test_links_and_doubles(tmp_path):
    link = zipfile.ZipInfo("m/link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with pytest.raises(UsageError, match="'m/link' is a link"):
        check_archive(archive(tmp_path / "a.zip", (link, "/etc/passwd")))
    with pytest.warns(UserWarning, match="Duplicate"):
        path = archive(tmp_path / "b.zip", ("m/data.pkl", b"one"), ("m/data.pkl", b"two"))
    with pytest.raises(UsageError, match=r"'m/data\.pkl' stands in it twice"):
        check_archive(path)


def test_names_that_torch_takes_for_one(tmp_path):
    path = archive(tmp_path / "a.zip", ("m/code/net.py", b"one"), ("m/CODE/Net.py", b"two"), VERSION)
    reader = PyTorchFileReader(str(path))
    assert reader.get_record("CODE/Net.py") == reader.get_record("code/net.py")
    with pytest.raises(UsageError, match=r"'m/code/net\.py' stands in it twice"):
        check_archive(path)


def parts(*entries):
    """An archive in memory: its entries, its directory and the count in it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in entries:
            archive.writestr(name, content)
    raw = out.getvalue()
    count, length, offset = struct.unpack("<HII", raw[-12:-2])
    return raw[:offset], raw[offset : offset + length], count


def end64(count, directory, offset):
    return struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, len(directory), offset)


def test_an_archive_that_shows_torch_another_directory(tmp_path):
    shown, directory, count = parts(("m/data.pkl", b"good"), VERSION)
    hidden, other, _ = parts(("m/data.pkl", b"evil"), VERSION)
    moved = bytearray(directory)
    for at in positions(directory, b"PK\x01\x02"):
        struct.pack_into("<I", moved, at + OFFSET, struct.unpack_from("<I", directory, at + OFFSET)[0] + len(hidden))
    raw = hidden + shown
    place = len(raw) + len(other)
    raw += other + end64(count, other, len(raw))
    start = len(raw)
    raw += bytes(moved) + end64(count, moved, start)
    raw += struct.pack("<4sIQI", b"PK\x06\x07", 0, place, 1)
    raw += struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    path = tmp_path / "two.pt"
    path.write_bytes(raw)
    assert PyTorchFileReader(str(path)).get_record("data.pkl") == b"evil"
    with pytest.raises(UsageError, match="can be read in several ways"):
        check_archive(path)


@pytest.mark.parametrize("around", [(b"", b"junk"), (b"PK\x03\x04 before", b"")])
def test_something_before_or_after_an_archive(tmp_path, around):
    path = archive(tmp_path / "a.zip", ("m/data.pkl", b"x" * 99))
    path.write_bytes(around[0] + path.read_bytes() + around[1])
    with pytest.raises(UsageError, match="can be read in several ways"):
        check_archive(path)


def test_an_archive_of_more_than_four_gigabytes_or_many_entries_is_sound(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)  # in the place of 65535
    path = archive(tmp_path / "a.zip", ("m/data.pkl", b"x" * 99), VERSION)
    assert b"PK\x06\x07" in path.read_bytes()
    assert check_archive(path) == ("m/data.pkl", "m/version")
    assert PyTorchFileReader(str(path)).get_record("version") == b"3"


def test_many_doubles_are_found_in_no_time(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as out:
        for number in range(30_000):
            out.writestr(f"m/{'x' if number < 29_999 else 'X'}{min(number, 29_998)}", b"")
    started = time.process_time()
    with pytest.raises(UsageError, match="stands in it twice"):
        check_archive(path)
    assert time.process_time() - started < 3


def test_bombs_are_not_unpacked(tmp_path):
    path = archive(tmp_path / "a.zip", ("m/data/0", bytes(MAX_RATIO * 5000)), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(UsageError, match="would grow from"):
        check_archive(path)


@pytest.mark.parametrize("command", ["inspect", "export", "run"])
def test_no_command_unpacks_a_bomb(tmp_path, cli, command):
    torch.save({"record": torch.zeros(64 << 20, dtype=torch.uint8)}, tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole:
        entries = [(name, whole.read(name)) for name in whole.namelist()]
    path = archive(tmp_path / "bomb.pt", *entries, compression=zipfile.ZIP_DEFLATED)
    del entries
    np.savez(tmp_path / "data.npz", x=np.zeros(1))
    words = {"inspect": (), "export": ("-o", tmp_path / "out"), "run": ("--data", tmp_path / "data.npz")}
    tracemalloc.start()
    done = cli(command, path, *words[command])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert done.code == 2
    assert "would grow from" in done.err
    assert peak < 48 << 20


def test_an_archive_that_would_not_fit_into_memory_is_not_unpacked(tmp_path, monkeypatch):
    path = archive(tmp_path / "a.zip", ("m/data/0", bytes(range(256)) * 400), compression=zipfile.ZIP_DEFLATED)
    assert check_archive(path) == ("m/data/0",)
    monkeypatch.setattr(archives, "free_memory", lambda: 100_000)
    with pytest.raises(UsageError, match="not fit into memory"):
        check_archive(path)


def test_a_bomb_inside_a_program_is_not_unpacked(tmp_path):
    inner = archive(tmp_path / "inner.pt", ("m/data/0", bytes(MAX_RATIO * 5000)), compression=zipfile.ZIP_DEFLATED)
    content = inner.read_bytes()
    path = archive(tmp_path / "a.pt2", ("a/archive_format", b"pt2"), ("a/data/sample_inputs/model.pt", content))
    with pytest.raises(UsageError, match=r"would grow from.*sample_inputs/model\.pt"):
        load_program(path)


def directory_entry(content: bytes, name: bytes) -> int:
    """Where in the bytes of an archive the directory speaks of an entry."""
    found = positions(content, b"PK\x01\x02")
    return next(at for at in found if content[at + 46 : at + 46 + len(name)] == name)


def positions(content, sign):
    at = content.find(sign)
    while at >= 0:
        yield at
        at = content.find(sign, at + 1)


def patched(path, name, offset, form, value):
    """Write a number into the directory's entry of ``name``."""
    content = bytearray(path.read_bytes())
    struct.pack_into(form, content, directory_entry(bytes(content), name) + offset, value)
    path.write_bytes(content)
    return path


SIZE, PACKED, OFFSET, FLAGS, METHOD = 24, 20, 42, 8, 10


def test_declared_sizes_that_are_not_the_real_ones(tmp_path):
    entries = [("m/data/0", b"ab" * 5000)]
    stored = patched(archive(tmp_path / "a.zip", *entries), b"m/data/0", SIZE, "<I", 2_000_000)
    with pytest.raises(UsageError, match="declares 2000000 bytes and has 10000"):
        check_archive(stored)
    smaller = archive(tmp_path / "b.zip", *entries, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(UsageError, match=r"damaged|not the 50 bytes"):
        check_archive(patched(smaller, b"m/data/0", SIZE, "<I", 50))
    larger = archive(tmp_path / "c.zip", ("m/data/0", bytes(range(256)) * 40), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(UsageError, match=r"damaged|not the 11000 bytes"):
        check_archive(patched(larger, b"m/data/0", SIZE, "<I", 11_000))


def test_entries_that_overlap_or_are_encrypted_or_reach_past_the_end(tmp_path):
    two = [("m/data/0", bytes(1000)), ("m/data/1", bytes(1000))]
    with pytest.raises(UsageError, match="overlaps another entry"):
        check_archive(patched(archive(tmp_path / "a.zip", *two), b"m/data/1", OFFSET, "<I", 8))
    with pytest.raises(UsageError, match="encrypted"):
        check_archive(patched(archive(tmp_path / "b.zip", *two), b"m/data/1", FLAGS, "<H", 1))
    with pytest.raises(UsageError, match="unusual way"):
        check_archive(patched(archive(tmp_path / "c.zip", *two), b"m/data/1", METHOD, "<H", zipfile.ZIP_LZMA))
    longer = patched(archive(tmp_path / "d.zip", *two), b"m/data/1", PACKED, "<I", 9000)
    with pytest.raises(UsageError, match="past its end"):
        check_archive(patched(longer, b"m/data/1", SIZE, "<I", 9000))


def test_damaged_archives_and_what_is_none(tmp_path):
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as out:
        out.writestr("m/data.pkl", bytes(3000))
    path = tmp_path / "a.pt"
    for keep in (10, 1500, len(whole.getvalue()) - 3):
        path.write_bytes(whole.getvalue()[:keep])
        with pytest.raises(UsageError, match="the archive is damaged"):
            kind_of(path)
    with pytest.raises(UsageError, match="holds no model"):
        kind_of(archive(tmp_path / "b.pt", ("readme.txt", b"hello")))
    (tmp_path / "c.pt2").write_bytes(b"nothing of the kind")
    with pytest.raises(UsageError, match=r"not a torch\.export program, or a truncated one"):
        kind_of(tmp_path / "c.pt2")
    (tmp_path / "c.txt").write_bytes(b"hello")
    with pytest.raises(UsageError, match="not a model in any form"):
        kind_of(tmp_path / "c.txt")
