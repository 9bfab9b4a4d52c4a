"""`mpdeploy convert` as a user calls it."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import mpdeploy
from mpdeploy import records
from mpdeploy.plan.record import PrecisionPlan

FLOAT, HALF, BRAIN = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16


def kinds(path):
    """The element types of a model's inputs, outputs and weights by name."""
    graph = onnx.load(path).graph
    found = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    return found | {t.name: t.data_type for t in graph.initializer}


def decisions(path):
    plan = records.load(PrecisionPlan, Path(path))
    return {d.node: (d.format.value, d.code) for d in plan.decisions}


@pytest.mark.parametrize(("precision", "kind"), [("fp16", HALF), ("bf16", BRAIN)])
def test_a_drop_in_replacement_and_its_plan(cli, net, tmp_path, precision, kind):
    out = tmp_path / "low.onnx"
    done = cli("convert", net, "-o", out, "--precision", precision)
    assert (done.code, done.err) == (0, "")
    found = kinds(out)
    assert (found["x"], found["logits"], found["energy"]) == (FLOAT, FLOAT, FLOAT)
    assert (found["w0"], found["w1"]) == (kind, kind)
    assert f"{out}: {precision}" in done.out
    assert f"plan: {tmp_path / 'low.plan.json'}" in done.out
    onnx.checker.check_model(onnx.load(out), full_check=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["low.onnx", "low.plan.json", "net.onnx"]


def test_data_decide_what_overflows(cli, net, data, tmp_path):
    cli("convert", net, "-o", tmp_path / "low.onnx", "--precision", "fp16", "--data", data)
    found = decisions(tmp_path / "low.plan.json")
    assert found["first"][0] == "fp16"
    assert found["grow"][0] == "fp32"
    assert found["grow"][1].startswith("MP1")
    # BF16 has the range of FP32.
    cli("convert", net, "-o", tmp_path / "brain.onnx", "--precision", "bf16", "--data", data)
    assert not decisions(tmp_path / "brain.plan.json")["grow"][1].startswith("MP1")


def test_json_is_the_record(cli, net, data, tmp_path):
    done = cli("convert", net, "-o", tmp_path / "low.onnx", "--precision", "fp16", "--data", data, "--json")
    assert (done.code, done.err) == (0, "")
    document = done.document
    assert document["schema"] == "mpdeploy.conversion/1"
    assert document["model"] == str(tmp_path / "low.onnx")
    assert document["model_bytes"] == (tmp_path / "low.onnx").stat().st_size
    assert document["source_bytes"] == net.stat().st_size
    plan = json.loads((tmp_path / "low.plan.json").read_text())
    assert document["low_operators"] == sum(d["format"] == "fp16" for d in plan["decisions"])


def test_low_io(cli, net, tmp_path):
    assert cli("convert", net, "-o", tmp_path / "low.onnx", "--precision", "fp16", "--low-io").code == 0
    found = kinds(tmp_path / "low.onnx")
    assert (found["x"], found["logits"]) == (HALF, HALF)


def test_what_the_user_keeps_in_fp32(cli, net, tmp_path):
    out = tmp_path / "low.onnx"
    assert cli("convert", net, "-o", out, "--precision", "fp16", "--keep-fp32", "f*", "--op-fp32", "Relu").code == 0
    found = decisions(tmp_path / "low.plan.json")
    assert found["first"] == found["second"] == ("fp32", "MP601")
    assert found["third"][0] == "fp16"
    assert kinds(out)["w0"] == FLOAT


def test_a_pattern_that_matches_nothing_is_a_mistake(cli, net, tmp_path):
    for words, says in [(("--keep-fp32", "frist"), "frist"), (("--op-fp32", "Reluu"), "Reluu")]:
        done = cli("convert", net, "-o", tmp_path / "low.onnx", "--precision", "fp16", *words)
        assert (done.code, done.out) == (2, "")
        assert says in done.err
        assert not (tmp_path / "low.onnx").exists()


def test_a_plan_is_edited_and_applied(cli, net, tmp_path):
    cli("convert", net, "-o", tmp_path / "one.onnx", "--precision", "fp16")
    plan = tmp_path / "one.plan.json"
    document = json.loads(plan.read_text())
    for decision in document["decisions"]:
        if decision["node"] == "third":
            decision["format"] = "fp32"
    (tmp_path / "mine.json").write_text(json.dumps(document))
    done = cli("convert", net, "-o", tmp_path / "two.onnx", "--precision", "fp16", "--plan", tmp_path / "mine.json")
    assert done.code == 0, done.err
    assert kinds(tmp_path / "one.onnx")["w1"] == HALF
    assert kinds(tmp_path / "two.onnx")["w1"] == FLOAT
    # The plan as it was gives the model as it was.
    cli("convert", net, "-o", tmp_path / "three.onnx", "--precision", "fp16", "--plan", plan)
    assert (tmp_path / "three.onnx").read_bytes() == (tmp_path / "one.onnx").read_bytes()


def test_converting_twice_changes_nothing(cli, net, tmp_path):
    one, two = tmp_path / "one.onnx", tmp_path / "two.onnx"
    cli("convert", net, "-o", one, "--precision", "fp16")
    done = cli("convert", one, "-o", two, "--precision", "fp16")
    assert done.code == 0
    assert "unchanged" in done.out
    assert one.read_bytes() == two.read_bytes()


def test_equal_calls_give_equal_bytes(cli, net, data, tmp_path):
    for name in ("one", "two"):
        cli("convert", net, "-o", tmp_path / f"{name}.onnx", "--precision", "fp16", "--data", data)
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    assert (tmp_path / "one.plan.json").read_bytes() == (tmp_path / "two.plan.json").read_bytes()


def test_from_python_with_the_words_of_the_flags(net, data, tmp_path):
    result = mpdeploy.convert(
        net,
        tmp_path / "low.onnx",
        precision="fp16",
        data=str(data),
        policy="balanced",
        keep_fp32=("first",),
        op_fp32=("Relu",),
        low_io=True,
    )
    assert result.model == str(tmp_path / "low.onnx")
    assert decisions(result.plan)["first"] == ("fp32", "MP601")
    mpdeploy.convert(str(net), str(tmp_path / "again.onnx"), precision="fp16", plan=result.plan)
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "low.onnx").read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--precision", "fp8"), 2, "'fp8' is not one of 'fp16', 'bf16'"),
        ((), 2, "--precision"),
        (("--precision", "fp16", "--policy", "bold"), 2, "the policies are autocast, safe, balanced, fast"),
        (("--precision", "fp16", "--policy", "balanced"), 2, "give --data"),
        (("--precision", "fp16", "--plan", "none.json"), 2, "not found"),
        (("--precision", "fp16", "--plan", "data.npz"), 2, "not a valid PrecisionPlan"),
        (("--precision", "fp16", "--data", "none.npz"), 2, "data file not found"),
        (("--precision", "fp16", "--data", "names.npz"), 2, "lacks input 'x', it holds y"),
        (("--precision", "fp16", "--data", "shape.npz"), 2, "dimension 1 of input 'x' is 3"),
        (("--precision", "fp16", "--data", "rank.npz"), 2, "'x'"),
        (("--precision", "fp16", "--data", "kind.npz"), 2, "without loss"),
        (("--precision", "fp16", "--data", "words.npz"), 2, "'x'"),
        (("--precision", "fp16", "--data", "broken.npz"), 2, "not an .npz file"),
        (("--precision", "fp16", "--data", "empty"), 2, "no .npz file"),
        (("--precision", "fp16", "--data", "feeds.py"), 2, "feeds.py:FUNCTION"),
        (("--precision", "fp16", "--data", "feeds.py:none"), 2, "no function 'none'"),
        (("--precision", "fp16", "--data", "feeds.py:fails"), 2, "ZeroDivisionError"),
        (("--precision", "fp16", "--data", "feeds.py:nothing"), 2, "no feed"),
        (("--precision", "fp16", "--data", "feeds.py:lists"), 2, "yield dicts"),
    ],
)
def test_bad_input_is_one_line_and_leaves_the_output_alone(cli, net, data, tmp_path, monkeypatch, words, code, says):
    monkeypatch.chdir(tmp_path)
    np.savez("names.npz", y=np.zeros((1, 16), np.float32))
    np.savez("shape.npz", x=np.zeros((1, 3), np.float32))
    np.savez("rank.npz", x=np.zeros(16, np.float32))
    np.savez("kind.npz", x=np.zeros((1, 16), np.complex64))
    np.savez("words.npz", x=np.full((1, 16), "a"))
    (tmp_path / "broken.npz").write_bytes(data.read_bytes()[:200])
    (tmp_path / "empty").mkdir()
    (tmp_path / "feeds.py").write_text(
        "def fails():\n    yield 1 / 0\ndef nothing():\n    return iter(())\ndef lists():\n    yield [1, 2]\n"
    )
    (tmp_path / "low.onnx").write_bytes(b"an older model")
    before = sorted(p.name for p in tmp_path.rglob("*") if "__pycache__" not in str(p))
    done = cli("convert", "net.onnx", "-o", "low.onnx", *words)
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert done.err.count("\n") == 1
    assert (tmp_path / "low.onnx").read_bytes() == b"an older model"
    assert sorted(p.name for p in tmp_path.rglob("*") if "__pycache__" not in str(p)) == before
