"""``mpdeploy.build`` takes the words of the flags, all of them and no others."""

import inspect
import os

import numpy as np
import pytest

import mpdeploy
from mpdeploy.cli.build import command
from mpdeploy.engine.building import build_engine
from mpdeploy.engine.loading import read_engine
from mpdeploy.engine.options import BuildOptions, Feature, parse_shapes
from mpdeploy.errors import UsageError
from mpdeploy.numerics.formats import Format

_OF_THE_COMMAND_LINE_ALONE = {"fp16", "bf16", "json", "as_json", "debug", "quiet", "help"}


def test_the_words_of_the_flags_and_of_the_function_are_the_same():
    flags = {name for option in command.params for name in [option.name] if name not in _OF_THE_COMMAND_LINE_ALONE}
    words = set(inspect.signature(mpdeploy.build).parameters) - {"progress"}
    assert words == flags


def test_words_become_options(layer, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    model = layer(rows="N")
    record = mpdeploy.build(
        model,
        tmp_path / "words.engine",
        shapes="x:1x4:8x4:32x4",
        sm=[8.6, "89"],
        workspace="1G",
        opt_level=2,
        tf32=True,
        feature="strict-nans",
        expect="fp16",
    )
    options = BuildOptions(
        profiles=parse_shapes(["x:1x4:8x4:32x4"]),
        capabilities=(86, 89),
        workspace=1 << 30,
        optimization_level=2,
        tf32=True,
        features=(Feature.STRICT_NANS,),
    )
    assert record.options == options
    assert record.expected == "fp16"
    build_engine(model, tmp_path / "options.engine", options=options, expect=Format.FP16)
    assert (tmp_path / "words.engine").read_bytes() == (tmp_path / "options.engine").read_bytes()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"shapes": ["x:1"]}, "NAME:MIN:OPT:MAX"),
        ({"sm": "ampere"}, "--sm 86,89"),
        ({"workspace": "much"}, "512M or 4G"),
        ({"workspace": 1 << 70}, "larger than TensorRT can count"),
        ({"opt_level": 9}, "from 0 to 5"),
        ({"feature": "magic"}, "choose from strip-weights, refit"),
        ({"expect": "int3"}, "choose from fp32, fp16, bf16, int8, fp8, fp4"),
        ({"rebuilds": 0}, "at least once"),
        ({"data": "d.npz", "shapes": "x:1:1:1"}, "not from both"),
    ],
)
def test_a_word_that_the_flag_would_not_take(layer, tmp_path, words, says):
    with pytest.raises(UsageError, match=says):
        mpdeploy.build(layer(), tmp_path / "model.engine", **words)
    assert not (tmp_path / "model.engine").exists()


@pytest.mark.parametrize("several", [False, True])
def test_arrays_give_the_shape_ranges_too(layer, tmp_path, several):
    feed = {"x": np.zeros((3, 4), np.float32)}
    record = mpdeploy.build(layer(rows="N"), tmp_path / "model.engine", data=[feed, feed] if several else feed)
    assert [str(found) for found in record.options.profiles[0].ranges] == ["x:1x4:3x4:3x4"]


def test_nothing_that_the_build_reads_is_overwritten(layer, tmp_path):
    """Not the model's weights, nor its plan: `low.plan.json` is the plan of low.onnx and the sidecar of low.plan."""
    model = layer(external=True, name="low.onnx")
    plan, pipe = tmp_path / "low.plan.json", tmp_path / "pipe"
    plan.write_text('{"schema": "mpdeploy.plan/1"}')
    os.mkfifo(pipe)
    before = (tmp_path / "low.onnx.data").read_bytes()
    for output, words, says in (
        ("low.onnx", {}, "is read"),
        ("low.onnx.data", {}, "is read"),
        ("low.plan", {"plan": plan}, "is read"),
        ("low.plan", {}, "a file that is not a sidecar"),
        ("pipe", {}, "a device or a pipe"),
    ):
        with pytest.raises(UsageError, match=says):
            mpdeploy.build(model, tmp_path / output, **words)
    assert plan.read_text() == '{"schema": "mpdeploy.plan/1"}'
    assert (tmp_path / "low.onnx.data").read_bytes() == before
    assert pipe.is_fifo()


def test_a_damaged_sidecar_is_built_over(layer, tmp_path):
    engine = tmp_path / "model.engine"
    (tmp_path / "model.engine.json").write_text('{"tool_version": "0.')
    mpdeploy.build(layer(), engine)
    assert read_engine(engine).engine.name == "model.engine"
