"""`.npz` files: judged before they are read, and read only as far as somebody asks."""

import io
import pickle
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpdeploy.errors import UsageError
from mpdeploy.runtime import npz
from mpdeploy.runtime.feeds import open_feeds
from mpdeploy.runtime.fit import renamed
from mpdeploy.runtime.lazy import headers_of
from mpdeploy.runtime.npz import read_npz, save_npz
from mpdeploy.runtime.runner import TensorSpec
from mpdeploy.runtime.slices import ROWS, slices

MIB = 1 << 20


def entry(header, content=b"", version=(1, 0), magic=b"\x93NUMPY"):
    """An array as it stands in a file, whatever its header says."""
    text = header if isinstance(header, bytes) else repr(header).encode()
    width = 2 if version == (1, 0) else 4
    return magic + bytes(version) + len(text).to_bytes(width, "little") + text + content


def said(shape=(2, 8), descr="<f4", fortran=False):
    return {"descr": descr, "fortran_order": fortran, "shape": shape}


def archive(path, method=zipfile.ZIP_STORED, **entries):
    with zipfile.ZipFile(path, "w", method) as out:
        for name, content in entries.items():
            out.writestr(f"{name}.npy", content)
    return path


SOUND = entry(said(), bytes(64))


def test_what_numpy_writes_is_read_as_numpy_reads_it(tmp_path):
    arrays = {
        "x": np.arange(24.0).reshape(2, 3, 4),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "text": np.array(["a", "bcd"]),
        "scalar": np.float16(3),
        "empty": np.zeros((0, 5), np.int8),
        "big": np.arange(3, dtype=">i4"),
        "a:0/b": np.array([True, False]),
    }
    for write in (np.savez, np.savez_compressed):
        path = tmp_path / "d.npz"
        write(path, **arrays)
        found = read_npz(path)
        assert list(found) == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array, strict=True)
            assert found.headers[name].shape == np.shape(array)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (entry(said(), bytes(64), version=(200, 0)), "version of the format that there is not"),
        (entry(said((True, 8)), bytes(32)), "damaged header"),
        (entry(said((-2, 8)), bytes(64)), "damaged header"),
        (entry(said((2.0, 8)), bytes(64)), "damaged header"),
        (entry(said([2, 8]), bytes(64)), "damaged header"),
        (entry(said((1 << 40, 1 << 40)), bytes(64)), "damaged header"),
        (entry(said((0, 1 << 80)), b""), "damaged header"),
        (entry(said((1,) * 65), bytes(4)), "damaged header"),
        (entry(said(descr="nonsense"), bytes(64)), "damaged header"),
        (entry(said(descr="V0"), bytes(64)), "damaged header"),
        (entry(said(fortran=1), bytes(64)), "damaged header"),
        (entry({"descr": "<f4", "shape": (2, 8)}, bytes(64)), "damaged header"),
        (entry(said() | {"more": 1}, bytes(64)), "damaged header"),
        (entry(b"(" * 9000), "damaged header"),
        (entry(b"\xff\xfe", version=(3, 0)), "damaged header"),
        (entry(b"[" * 20_000), "too long, or cut short"),
        (SOUND[:20], "too long, or cut short"),
        (entry(said(descr="|O"), bytes(64)), "holds Python objects"),
        (entry(said((2_500_000_000,)), bytes(64)), "declares 10,000,000,000 bytes and holds 64"),
        (entry(said((3, 8)), bytes(64)), "declares 96 bytes and holds 64"),
        (entry(said((1, 8)), bytes(64)), "declares 32 bytes and holds 64"),
        (entry(said(), bytes(64), magic=b"GARBAG"), "is not an array"),
        (b"", "is not an array"),
    ],
)
def test_a_header_that_lies_is_refused_by_file_and_array(tmp_path, content, says):
    path = archive(tmp_path / "d.npz", good=SOUND, bad=content)
    with pytest.raises(UsageError, match=says) as caught:
        read_npz(path)
    assert "'bad'" in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def in_directory(path, place, value, width=2):
    """Write a number into the first entry of an archive's directory."""
    content = bytearray(path.read_bytes())
    start = content.find(b"PK\x01\x02") + place
    content[start : start + width] = value.to_bytes(width, "little")
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("place", "value", "width", "says"),
    [
        (8, 1, 2, "encrypted"),
        (10, 99, 2, "unusual way"),
        (10, zipfile.ZIP_BZIP2, 2, "unusual way"),
        (24, 10**9, 4, "declares 1000000000 bytes"),
        (42, 60, 4, "past its end"),
        (16, 0, 4, "is damaged"),
    ],
)
def test_a_directory_that_lies_is_refused(tmp_path, place, value, width, says):
    path = archive(tmp_path / "d.npz", x=SOUND)
    in_directory(path, place, value, width)
    with pytest.raises(UsageError, match=says) as caught:
        dict(read_npz(path))
    assert str(path) in str(caught.value)


def test_entries_that_overlap_or_stand_twice_are_refused(tmp_path):
    overlapping = archive(tmp_path / "a.npz", x=SOUND, y=SOUND)
    content = bytearray(overlapping.read_bytes())
    second = content.rfind(b"PK\x01\x02") + 42
    content[second : second + 4] = (8).to_bytes(4, "little")
    overlapping.write_bytes(content)
    with pytest.raises(UsageError, match=r"'y\.npy' overlaps"):
        read_npz(overlapping)
    twice = tmp_path / "b.npz"
    with zipfile.ZipFile(twice, "w") as out:
        out.writestr("x.npy", SOUND)
        out.writestr("x", SOUND)
    with pytest.raises(UsageError, match="'x' twice"):
        read_npz(twice)


def test_damage_among_the_numbers_is_found_when_they_are_read(tmp_path):
    path = archive(tmp_path / "d.npz", x=entry(said((MIB,)), bytes(4 * MIB)), y=SOUND)
    content = bytearray(path.read_bytes())
    content[2 * MIB] ^= 1
    path.write_bytes(content)
    found = read_npz(path)
    np.testing.assert_array_equal(found["y"], np.zeros((2, 8), np.float32))
    with pytest.raises(UsageError, match="'x' is damaged"):
        found["x"]


def test_an_array_beyond_memory_is_refused_when_it_is_asked_for(tmp_path, monkeypatch):
    path = archive(tmp_path / "d.npz", zipfile.ZIP_DEFLATED, x=SOUND, huge=entry(said((MIB,)), bytes(4 * MIB)))
    monkeypatch.setattr(npz, "free_memory", lambda: 1.5 * 4 * MIB)
    found = read_npz(path)
    assert found["x"].shape == (2, 8)
    with pytest.raises(UsageError, match=r"'huge' takes 4,194,304 bytes.*memory"):
        found["huge"]


def bomb(path, arrays, megabytes=128):
    """A small file with an array beside those asked for that takes much memory."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        with out.open("bomb.npy", "w", force_zip64=True) as stream:
            stream.write(entry(said((megabytes * MIB,), "|u1")))
            for _ in range(megabytes):
                stream.write(bytes(MIB))
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array)
            out.writestr(f"{name}.npy", content.getvalue())
    return path


def peak_of(task):
    tracemalloc.start()
    try:
        result = task()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_an_array_that_nobody_asks_for_costs_nothing(tmp_path):
    path = bomb(tmp_path / "d.npz", {"x": np.ones((4, 8), np.float32), "labels": np.arange(4)})
    assert path.stat().st_size < MIB
    inputs = (TensorSpec("x", "float32", ("N", 8)),)

    def read():
        for _, feed in open_feeds(str(path)).labelled():
            other, _ = renamed(feed, inputs, (TensorSpec("y", "float32", ("N", 8)),))
            for _, part in slices(other, inputs):
                assert part["y"].sum() + part["labels"].sum() == 38
            assert headers_of(other)["bomb"].shape == (128 * MIB,)

    assert peak_of(read)[1] < 8 * MIB


@pytest.fixture
def product(tmp_path):
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[N, 8] x) => (float[N, 8] y) { y = Add(x, x) }'
    import onnx

    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_commands_read_no_more_than_the_model_takes(tmp_path, product, cli):
    data = bomb(tmp_path / "d.npz", {"x": np.ones((4, 8), np.float32)})
    for words in (
        ("run", product, "--data", data),
        ("convert", product, "-o", tmp_path / "o.onnx", "--precision", "fp16", "--data", data),
        ("verify", product, product, "--data", data, "--report", tmp_path / "report"),
        ("bench", product, "--data", data, "--rounds", "1", "--seconds", "0.01", "--warmup", "0"),
    ):
        done, peak = peak_of(lambda words=words: cli(*words))
        assert done.code == 0, done.err
        assert peak < 96 * MIB


def test_a_command_refuses_a_lying_file_in_one_line(tmp_path, product, cli):
    data = archive(tmp_path / "d.npz", x=entry(said((True, 8)), bytes(32)))
    done = cli("run", product, "--data", data)
    assert done.code == 2
    assert done.err.startswith("mpdeploy: the array 'x' has a damaged header")
    assert done.err.count("\n") == 1


def test_slices_of_a_file_are_the_rows_of_its_arrays(tmp_path):
    rows = 2 * ROWS + 3
    np.savez(tmp_path / "d.npz", x=np.arange(rows * 8, dtype=np.float32).reshape(rows, 8), labels=np.arange(rows))
    feed = read_npz(tmp_path / "d.npz")
    parts = [part for _, part in slices(feed, (TensorSpec("x", "float32", ("N", 8)),))]
    assert [headers_of(part)["x"].shape for part in parts] == [part["x"].shape for part in parts]
    for name in feed:
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), feed[name])


def test_a_feed_travels_to_another_process_as_plain_arrays(tmp_path):
    save_npz(tmp_path / "d.npz", {"x": np.arange(3)})
    copy = pickle.loads(pickle.dumps(read_npz(tmp_path / "d.npz")))  # noqa: S301
    assert copy["x"].tolist() == [0, 1, 2]


def attempt(path):
    """All arrays of a file, or the one line that refuses it."""
    try:
        return dict(read_npz(path)), ""
    except UsageError as error:
        line = str(error)
    assert "\n" not in line
    assert str(path) in line
    return None, line


headers = st.one_of(
    st.binary(max_size=80),
    st.builds(
        said,
        st.one_of(
            st.lists(st.one_of(st.integers(-2, 9), st.booleans(), st.integers(0, 1 << 70)), max_size=5).map(tuple),
            st.text(max_size=5),
        ),
        st.one_of(st.sampled_from(["<f4", ">i8", "|O", "<U3", "V2", "|b1", "<M8[s]", "<f3", ""]), st.text(max_size=6)),
        st.one_of(st.booleans(), st.integers()),
    ),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=headers, content=st.binary(max_size=120), version=st.tuples(st.integers(0, 5), st.integers(0, 2)))
def test_any_header_ends_in_an_array_or_in_one_line(tmp_path, header, content, version):
    path = archive(tmp_path / "d.npz", x=entry(header, content, version if version[0] else (1, 0)))
    found, refusal = attempt(path)
    if found is None:
        assert "'x'" in refusal
    else:
        assert found["x"].shape == read_npz(path).headers["x"].shape
        assert found["x"].nbytes == len(content)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    places=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4),
    kept=st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_a_file_that_is_damaged_anywhere_ends_in_arrays_or_in_one_line(tmp_path, places, kept):
    path = tmp_path / "d.npz"
    np.savez_compressed(path, x=np.arange(16).reshape(2, 8), y=np.arange(3.0))
    content = bytearray(path.read_bytes())
    for place, value in places:
        content[place % len(content)] = value
    path.write_bytes(content[: max(1, int(len(content) * kept))])
    attempt(path)


def test_a_directory_is_judged_once_for_all_arrays(tmp_path, monkeypatch):
    path, judged = tmp_path / "d.npz", []
    save_npz(path, {f"a{number}": np.full(2, number) for number in range(50)})
    sound = npz.sound_entries
    monkeypatch.setattr(npz, "sound_entries", lambda archive, where: judged.append(where) or sound(archive, where))
    feed = read_npz(path)
    assert [feed[name][0] for name in feed] == list(range(50))
    assert len(judged) == 1


@pytest.mark.parametrize("change", ["other numbers", "cut short"])
def test_a_file_that_changed_after_it_was_judged_is_not_believed(tmp_path, change):
    path = tmp_path / "d.npz"
    save_npz(path, {"a": np.arange(1000)})
    feed = read_npz(path)
    content = path.read_bytes()
    path.unlink()
    if change == "other numbers":
        save_npz(path, {"a": np.arange(1000, 2000)})
    else:
        path.write_bytes(content[:500])
    with pytest.raises(UsageError, match="the array 'a' is not what it was: the file has changed"):
        feed["a"]
