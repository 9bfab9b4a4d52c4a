"""Random graphs, as `scripts/fuzz_graphs.py` makes them: a few of them here, thousands there."""

import importlib
from pathlib import Path

import onnx
import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def fuzz(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    return importlib.import_module("fuzz_graphs")


@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("with_data", [False, True], ids=["without data", "with data"])
def test_what_is_promised_of_any_graph(fuzz, number, precision, with_data, tmp_path):
    model, feeds = fuzz.grow((7, number))
    assert fuzz.is_sound(model, feeds)
    onnx.save(model, tmp_path / "source.onnx")
    _, fault = fuzz.outcome(tmp_path, precision, feeds, with_data=with_data)
    assert fault == ""


def test_the_same_seed_gives_the_same_graph(fuzz):
    (first, _), (second, _), (other, _) = (fuzz.grow(seed) for seed in ((1, 2), (1, 2), (1, 3)))
    assert first.SerializeToString() == second.SerializeToString() != other.SerializeToString()


def test_what_breaks_a_promise_is_seen(fuzz, tmp_path):
    model, _ = fuzz.grow((7, 0))
    onnx.save(model, tmp_path / "source.onnx")
    onnx.save(model, tmp_path / "low.onnx")
    assert fuzz.what_is_wrong(tmp_path / "source.onnx", tmp_path / "low.onnx", "fp16") == "converted again it changes"
    del model.graph.output[:]
    onnx.save(model, tmp_path / "low.onnx")
    assert "not those of the source" in fuzz.what_is_wrong(tmp_path / "source.onnx", tmp_path / "low.onnx", "fp16")


def test_sizes_that_inference_names_itself_are_not_written(fuzz, tmp_path):
    # Found by graph 549: what a branch gives was written as `unk__3`, in the next conversion as `unk__5`.
    model, feeds = fuzz.grow((0, 549))
    onnx.save(model, tmp_path / "source.onnx")
    assert fuzz.outcome(tmp_path, "bf16", feeds, with_data=True) == ("within", "")
    assert b"unk__" not in (tmp_path / "low.onnx").read_bytes()
