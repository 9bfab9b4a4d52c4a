"""Words of the command line become options, or one clear line."""

import pytest

from mpdeploy import records
from mpdeploy.engine.options import (
    BuildOptions,
    Feature,
    Profile,
    ShapeRange,
    parse_capabilities,
    parse_shapes,
    parse_size,
)
from mpdeploy.errors import UsageError


def test_a_range_reads_and_prints_the_same():
    word = "images:1x3x8x8:2x3x8x8:4x3x8x8"
    (profile,) = parse_shapes([word])
    assert profile.ranges == (ShapeRange("images", (1, 3, 8, 8), (2, 3, 8, 8), (4, 3, 8, 8)),)
    assert str(profile.ranges[0]) == word


def test_a_name_may_hold_colons():
    assert parse_shapes(["input:0:1:2:3"])[0].ranges[0].name == "input:0"


def test_a_second_word_for_an_input_opens_a_second_profile():
    first, second = parse_shapes(["a:1:1:1", "b:7:8:9", "a:2:4:8"])
    assert first == Profile((ShapeRange("a", (1,), (1,), (1,)), ShapeRange("b", (7,), (8,), (9,))))
    assert second == Profile((ShapeRange("a", (2,), (4,), (8,)), ShapeRange("b", (7,), (8,), (9,))))


@pytest.mark.parametrize("word", ["", "x", "x:1", "x:1:2", ":1:2:3", "x:1:2:three", "x:1x:2:3", "x:-1:2:3", "x::2:3"])
def test_a_malformed_range_shows_how_to_write_one(word):
    with pytest.raises(UsageError, match="NAME:MIN:OPT:MAX"):
        parse_shapes([word])


@pytest.mark.parametrize("word", ["x:2:1:3", "x:1:3:2", "x:1x2:1x2:1x1", "x:1:1x1:1"])
def test_a_contradictory_range_is_refused(word):
    with pytest.raises(UsageError, match="--shapes x:"):
        parse_shapes([word])


def test_capabilities_in_all_spellings():
    assert parse_capabilities(["86,8.9", "sm_120"]) == (86, 89, 120)
    for word in ("", "ampere", "8", "86,,89", "1000"):
        with pytest.raises(UsageError, match="--sm 86,89"):
            parse_capabilities([word])


def test_targets_are_a_set():
    assert BuildOptions(capabilities=(89, 86, 89)) == BuildOptions(capabilities=(86, 89))


def test_features_are_a_set_and_survive_their_record():
    refit, strict = Feature.REFIT, Feature.STRICT_NANS
    options = BuildOptions(features=(strict, refit, strict))
    assert options == BuildOptions(features=(refit, strict))
    assert records.from_json(BuildOptions, records.to_json(options), "options") == options


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("4k", 4096), ("512M", 512 << 20), ("4 GiB", None), ("2GiB", 2 << 30)]
)
def test_sizes(text, size):
    if size is None:
        with pytest.raises(UsageError, match="512M or 4G"):
            parse_size(text)
    else:
        assert parse_size(text) == size


def test_digits_are_those_of_ascii_and_dimensions_can_be_counted():
    with pytest.raises(UsageError, match="NAME:MIN:OPT:MAX"):
        parse_shapes(["x:\N{ARABIC-INDIC DIGIT THREE}:4:8"])
    with pytest.raises(UsageError, match="larger than TensorRT can count"):
        parse_shapes([f"x:1:4:{1 << 63}"])


@pytest.mark.parametrize("changes", [{"workspace": 0}, {"workspace": 1 << 63}, {"optimization_level": 6}])
def test_impossible_options_die_on_construction(changes):
    with pytest.raises(UsageError):
        BuildOptions(**changes)
