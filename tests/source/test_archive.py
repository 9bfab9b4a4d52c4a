"""Archives that lie are refused before anything in them is read."""

import io
import stat
import struct
import zipfile

import pytest

from mpdeploy.errors import UsageError
from mpdeploy.source.archive import MAX_RATIO, check_archive
from mpdeploy.source.kinds import kind_of


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


def test_bombs_are_not_unpacked(tmp_path):
    path = archive(tmp_path / "a.zip", ("m/data/0", bytes(MAX_RATIO * 5000)), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(UsageError, match="would grow from"):
        check_archive(path)


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
