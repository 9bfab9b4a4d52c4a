"""`--data`: every form it takes, and every way in which it can be wrong."""

import zipfile

import ml_dtypes
import numpy as np
import pytest

from mpdeploy.errors import UsageError
from mpdeploy.runtime.feeds import feeds_of, open_feeds
from mpdeploy.runtime.fit import fit
from mpdeploy.runtime.runner import TensorSpec
from mpdeploy.runtime.truth import truth_in


def one_line(error):
    return "\n" not in str(error.value) and "; " in str(error.value)


def test_one_file_is_one_feed_each_time_it_is_read(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.arange(3.0), labels=np.array([1]))
    feeds = open_feeds(str(tmp_path / "d.npz"))
    for _ in range(2):
        (feed,) = feeds
        assert sorted(feed) == ["labels", "x"]
    assert feeds.count == 1
    assert len(feeds.sha256()) == 64


def test_a_folder_is_one_feed_per_file_in_natural_order(tmp_path):
    for i in (10, 2, 1):
        np.savez(tmp_path / f"s{i}.npz", x=np.array([i]))
    (tmp_path / "notes.txt").write_text("not data")
    feeds = open_feeds(str(tmp_path))
    assert [int(f["x"][0]) for f in feeds] == [1, 2, 10]
    before = feeds.sha256()
    np.savez(tmp_path / "s2.npz", x=np.array([3]))
    assert open_feeds(str(tmp_path)).sha256() != before


def test_a_function_yields_feeds_lazily_and_again(tmp_path):
    path = tmp_path / "data.py"
    path.write_text(
        "import numpy as np\nmade = []\n"
        "def batches():\n    for i in range(1000):\n        made.append(i)\n        yield {'x': np.full(2, i)}\n"
        "def single():\n    return {'x': [1.0, 2.0]}\n"
    )
    feeds = open_feeds(f"{path}:batches")
    stream = iter(feeds)
    assert next(stream)["x"][0] == 0
    assert next(stream)["x"][0] == 1
    assert len(list(feeds)) == 1000
    assert [f["x"].tolist() for f in open_feeds(f"{path}:single")] == [[1.0, 2.0]]


def test_progress_sees_every_feed():
    seen = []

    def watch(stream):
        for item in stream:
            seen.append(item[0])
            yield item

    feeds = feeds_of([{"x": np.zeros(1)}, {"x": np.ones(1)}]).through(watch)
    assert len(list(feeds)) == 2
    assert seen == ["arrays #0", "arrays #1"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "not found"),
        (b"", "empty"),
        (b"hello", "not an .npz"),
        (b"PK\x03\x04broken", "not an .npz"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, content, says):
    path = tmp_path / "d.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        list(open_feeds(str(path)))
    assert one_line(caught)


def test_nothing_is_ever_unpickled(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UsageError, match="Python objects"):
        list(open_feeds(str(tmp_path / "d.npz")))


def test_a_truncated_archive_and_a_bare_array_are_refused(tmp_path):
    np.savez(tmp_path / "whole.npz", x=np.arange(1000))
    (tmp_path / "half.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:4000])
    np.save(tmp_path / "bare.npy", np.arange(3))
    with zipfile.ZipFile(tmp_path / "none.npz", "w"):
        pass
    for name, says in (("half.npz", "damaged"), ("bare.npy", "without a name")):
        with pytest.raises(UsageError, match=says):
            list(open_feeds(str(tmp_path / name)))
    assert list(open_feeds(str(tmp_path / "none.npz"))) == [{}]


@pytest.mark.parametrize(
    ("text", "function", "says"),
    [
        ("def f(): yield 3\n", "f", "yielded a int"),
        ("def f(): yield from ()\n", "f", "no feed"),
        ("def f():\n    yield {'x': [1]}\n    raise ValueError('disk gone')\n", "f", "ValueError: disk gone"),
        ("def f(): return 5\n", "f", "TypeError"),
        ("def f(): yield {}\n", "g", "no function 'g'"),
        ("import nonsense_module\n", "f", "ModuleNotFoundError"),
        ("def f(:\n", "f", "SyntaxError"),
    ],
)
def test_a_bad_function_is_refused(tmp_path, text, function, says):
    path = tmp_path / "data.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=says) as caught:
        list(open_feeds(f"{path}:{function}"))
    assert "\n" not in str(caught.value)


def test_a_module_without_a_function_and_an_empty_folder_are_refused(tmp_path):
    (tmp_path / "d.py").write_text("")
    with pytest.raises(UsageError, match="FUNCTION"):
        open_feeds(str(tmp_path / "d.py"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no \.npz"):
        open_feeds(str(tmp_path / "empty"))


# --- fitting to a model -------------------------------------------------------------------------------------

IMAGE = TensorSpec("image", "float32", ("N", 3, None))
IDS = TensorSpec("ids", "int64", ("N",))


def test_a_feed_that_fits_passes_as_it_is():
    image = np.zeros((2, 3, 7), np.float32)
    fitted = fit({"image": image, "ids": np.array([1, 2]), "labels": np.array([0, 1])}, (IMAGE, IDS), "d")
    assert fitted.feed["image"] is image
    assert list(fitted.extras) == ["labels"]
    assert fitted.notes == ()


@pytest.mark.parametrize(
    ("feed", "says"),
    [
        ({"img": np.zeros((1, 3, 4), np.float32)}, "lacks input 'image', it holds img"),
        ({}, "lacks input 'image', it holds nothing"),
        ({"image": np.zeros((3, 4), np.float32)}, "2 dimensions"),
        ({"image": np.zeros((1, 4, 4), np.float32)}, "dimension 1 of input 'image' is 4"),
        ({"image": np.zeros((1, 3, 4), complex)}, "complex128"),
        ({"image": np.full((1, 3, 4), "a")}, "cannot become float32"),
    ],
)
def test_a_feed_that_does_not_fit_is_refused(feed, says):
    with pytest.raises(UsageError, match=says) as caught:
        fit(feed, (IMAGE,), "data.npz")
    assert "data.npz" in str(caught.value)
    assert one_line(caught)


def test_a_symbol_has_one_size_within_a_feed():
    feed = {"image": np.zeros((2, 3, 1), np.float32), "ids": np.zeros(3, np.int64)}
    with pytest.raises(UsageError, match="'N' is 2 in input 'image' and 3 in input 'ids'"):
        fit(feed, (IMAGE, IDS), "d")


@pytest.mark.parametrize(
    ("array", "dtype", "how"),
    [
        (np.array([1.5]), "float32", "exactly"),
        (np.array([0.1]), "float32", "rounding"),
        (np.float32([0.1]), "float16", "rounding"),
        (np.float32([70000.0]), "float16", "rounding"),
        (np.float32([0.5, np.nan]), "bfloat16", "exactly"),
        (np.array([3], np.int32), "int64", "exactly"),
        (np.array([3], np.uint8), "float32", "exactly"),
        (np.array([True]), "float32", "exactly"),
        (np.array([0, 1]), "bool", "exactly"),
    ],
)
def test_safe_casts_are_made_and_noted(array, dtype, how):
    fitted = fit({"x": array}, (TensorSpec("x", dtype, (None,)),), "d")
    assert fitted.feed["x"].dtype.name == dtype
    assert len(fitted.notes) == 1
    assert how in fitted.notes[0]


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([2**40]), "int32"),
        (np.array([1.0]), "int64"),
        (np.array([2**24 + 1]), "float32"),
        (np.array([2]), "bool"),
        (np.array(["a"]), "int64"),
        (np.array([1]), "string"),
    ],
)
def test_lossy_casts_are_refused(array, dtype):
    with pytest.raises(UsageError, match="without loss"):
        fit({"x": array}, (TensorSpec("x", dtype, (None,)),), "d")


def test_bfloat16_survives_numpys_files(tmp_path):
    want = np.array([1.5, 3e38], ml_dtypes.bfloat16)
    np.savez(tmp_path / "d.npz", x=want)
    (feed,) = open_feeds(str(tmp_path / "d.npz"))
    got = fit(feed, (TensorSpec("x", "bfloat16", (2,)),), "d").feed["x"]
    assert got.dtype == ml_dtypes.bfloat16
    assert np.array_equal(got, want)


def test_strings_reach_string_inputs():
    got = fit({"x": np.array(["a", "b"])}, (TensorSpec("x", "string", (None,)),), "d").feed["x"]
    assert got.dtype == object


def test_feeds_among_others():
    feeds = feeds_of([{"x": np.float32([i])} for i in range(5)], "some")
    chosen = feeds.among(["some #3", "some #1", "some #9"])
    assert [label for label, _ in chosen.labelled()] == ["some #1", "some #3"]
    with pytest.raises(UsageError, match="no feed"):
        list(feeds.among([]).labelled())


def test_texts_that_are_no_characters_are_refused():
    text = np.frombuffer((0x110000).to_bytes(4, "little") * 2, "<U1")
    with pytest.raises(UsageError, match="cannot become string"):
        fit({"t": text}, (TensorSpec("t", "string", ("N",)),), "d")
    assert fit({"t": np.array(["a"])}, (TensorSpec("t", "string", ("N",)),), "d").feed["t"].tolist() == ["a"]


@pytest.mark.parametrize("array", [np.full((2, 3), "a"), np.ones((2, 3), complex), np.zeros((2, 3), "V2")])
@pytest.mark.parametrize("key", ["targets", "targets.y"])
def test_targets_that_are_no_numbers_are_refused(key, array):
    outputs = {"y": np.zeros((2, 3), np.float32)}
    with pytest.raises(UsageError, match=f"'{key}' is .* which no output can be held against"):
        truth_in({key: array}, outputs, 2, "d")
    assert truth_in({key: np.ones((2, 3), np.int8)}, outputs, 2, "d").targets["y"].sum() == 6
