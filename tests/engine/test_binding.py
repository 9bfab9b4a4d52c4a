"""What does not fit an engine's inputs raises, and is never reinterpreted: cases T14, T16."""

import pytest

from mpdeploy.engine.binding import check_types, choose_profile, spec_of
from mpdeploy.engine.network import Port
from mpdeploy.engine.options import parse_shapes
from mpdeploy.errors import UsageError
from mpdeploy.runtime.runner import TensorSpec

HALF = Port("x", "fp16", ("N", 4))
IDS = Port("ids", "int64", ("N",))


def test_ports_speak_numpys_language():
    assert spec_of(HALF) == TensorSpec("x", "float16", ("N", 4))
    assert spec_of(Port("x", "bf16", (2,))).dtype == "bfloat16"
    assert spec_of(IDS).dtype == "int64"


def test_what_fits_passes():
    check_types({"x": ("float16", (3, 4)), "ids": ("int64", (3,))}, [HALF, IDS], "e")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"x": ("float32", (3, 4))}, "is float32, the engine reads float16.*convert it"),
        ({"x": ("bfloat16", (3, 4))}, "is bfloat16, the engine reads float16"),
        ({"x": ("float16", (3, 5))}, r"has shape \[3, 5\], the engine takes x float16\[N,4\]"),
        ({"x": ("float16", (3, 4, 1))}, "has shape"),
        ({"y": ("float16", (3, 4))}, "'x' is missing.*x float16"),
        ({"x": ("float16", (3, 4)), "y": ("float16", (3, 4))}, "no input 'y'"),
    ],
)
def test_what_does_not_fit_is_told(given, says):
    with pytest.raises(UsageError, match=says):
        check_types(given, [HALF], "e")


def test_the_first_profile_that_holds_all_shapes():
    profiles = parse_shapes(["x:1x4:1x4:1x4", "x:2x4:8x4:32x4"])
    assert choose_profile({"x": (1, 4)}, profiles, "e") == 0
    assert choose_profile({"x": (32, 4), "fixed": (7,)}, profiles, "e") == 1
    assert choose_profile({"x": (99, 4)}, (), "e") == 0
    with pytest.raises(UsageError, match=r"shape \[33, 4\] is outside .*x:1x4:1x4:1x4 or x:2x4:8x4:32x4"):
        choose_profile({"x": (33, 4)}, profiles, "e")


def test_shapes_that_fit_only_different_profiles_are_outside():
    profiles = parse_shapes(["a:1:1:1", "b:1:1:1", "a:2:2:2", "b:2:2:2"])
    with pytest.raises(UsageError, match="outside"):
        choose_profile({"a": (1,), "b": (2,)}, profiles, "e")
