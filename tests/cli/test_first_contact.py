"""What somebody meets who types the first commands, and mistypes some."""

import os
import shlex
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from mpdeploy.cli.app import COMMANDS
from mpdeploy.cli.app import cli as group
from mpdeploy.cli.examples import EXAMPLES
from mpdeploy.engine.options import parse_shapes
from mpdeploy.errors import UsageError
from mpdeploy.numerics.budget import parse_budget
from mpdeploy.pipeline.config import read_deployment
from mpdeploy.source.inputs import parse_input


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, 1, ["N", 4]) for n in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], name="head")], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
    np.savez("data.npz", x=np.ones((3, 4), np.float32))
    return tmp_path


@pytest.mark.parametrize("words", [(), ("bundle",)])
def test_a_bare_command_prints_its_help(cli, words):
    bare, helped = cli(*words), cli(*words, "--help")
    assert (bare.code, bare.err) == (0, "")
    assert bare.out == helped.out


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_a_command_that_can_be_called(name, cli):
    for line in EXAMPLES[name]:
        program, *words = shlex.split(line)
        assert program == "mpdeploy"
        context, command = click.Context(group), group
        while isinstance(command, click.Group):
            context = command.make_context(words[0] if words else "mpdeploy", words, parent=context)
            rest = [*context._protected_args, *context.args]
            word, command, words = command.resolve_command(context, rest)
        command.make_context(word, words, parent=context)  # parses, and raises for what cannot be


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_examples(cli, name):
    text = cli(name, "--help").out
    lines = text.rstrip().partition("Examples:\n")[2].splitlines()
    assert len(lines) in (2, 3)
    assert [line.strip() for line in lines] == list(EXAMPLES[name])


CONVERT = ("convert", "net.onnx", "-o", "low.onnx", "--precision")
MISTYPED = {
    ("expotr", "x"): "Did you mean export?",
    ("convrt",): "Did you mean convert?",
    ("bundle", "verfy", "x"): "Did you mean verify?",
    (*CONVERT, "fp61"): "Did you mean fp16?",
    ("train", "x.py", "--precision", "fp16"): "Did you mean fp16-mixed?",
    ("train", "x.py", "--precision", "bf16-mixd"): "Did you mean bf16-mixed?",
    ("verify", "net.onnx", "net.onnx", "--data", "data.npz", "--bugdet", "x"): "--budget",
    ("verify", "net.onnx", "net.onnx", "--data", "data.npz", "--budget", "cosin>=1"): "did you mean cosine?",
    ("run", "net.onnx", "--data", "data.npz", "--runtime", "onnxruntme"): "Did you mean onnxruntime?",
    ("export", "net.onnx", "--input", "x:1,8:flaot32"): "did you mean float32?",
}


@pytest.mark.parametrize("words", MISTYPED)
def test_a_mistyped_word_gets_a_suggestion(cli, folder, words):
    if "flaot32" in " ".join(words):
        with pytest.raises(UsageError, match=r"did you mean float32\?"):
            parse_input("x:1,8:flaot32")
        return
    done = cli(*words)
    assert (done.code, done.out) == (2, "")
    assert MISTYPED[words] in done.err
    assert done.err.count("id you mean") <= 1


@pytest.mark.parametrize("word", ["FP16", "Fp16", "BF16"])
def test_a_precision_in_any_case(cli, folder, word):
    assert cli(*CONVERT, word).code == 0


@pytest.mark.parametrize("name", ["state.pth", "state.safetensors", "state"])
def test_a_torch_file_is_told_the_way(cli, folder, name):
    Path(name).write_bytes(b"PK\x03\x04" + bytes(100))
    done = cli("convert", name, "-o", "low.onnx", "--precision", "fp16")
    assert done.code == 2
    assert f"'mpdeploy export {name}'" in done.err


def test_data_in_the_place_of_a_model(cli, folder):
    assert "--data" in cli("convert", "data.npz", "-o", "low.onnx", "--precision", "fp16").err


def test_a_node_that_is_not_there(cli, folder):
    assert cli(*CONVERT, "fp16").code == 0
    done = cli("inspect", "low.onnx", "--node", "haed")
    assert done.code == 2
    assert "did you mean head" in done.err
    assert "plan" not in done.err


def test_toml_as_people_write_it(tmp_path):
    path = tmp_path / "deploy.toml"
    path.write_bytes(
        b'\xef\xbb\xbfoutput = "out"\n[model]\npath = "m.onnx"\ninputs = "x:1,8"\n'
        b'[convert]\nprecision = "FP16"\nkeep_fp32 = "head"\n[build]\nsm = 86\n'
    )
    found = read_deployment(path)
    assert found.convert.precision == ("fp16",)
    assert found.convert.keep_fp32 == ("head",)
    assert found.model.inputs == ("x:1,8",)
    assert found.build.sm == (86,)


def test_a_percentage_is_a_limit():
    for text in ("top1>=99%", "top1>=99 %", "top1 >= 0.99"):
        assert parse_budget(text).limits[0].value == 0.99


def test_shapes_in_either_spelling():
    for commas, signs in (
        ("image:batch,3,224,224", "image:batchx3x224x224"),
        ("x:1,8", "x:1x8"),
        ("ids:1,128:int64", "ids:1x128:int64"),
    ):
        assert parse_input(commas) == parse_input(signs)
    assert parse_input("x:axis")[0].shape == ("axis",)
    assert parse_shapes(["x:1,8:4,8:8,8"]) == parse_shapes(["x:1x8:4x8:8x8"])


HOPELESS = [
    "x:1,99999999999999", "x:1,8:object", "x:1,8:bfloat16", "x:1,8:S5", "x:1,²", f"x:1,{'9' * 5000}", "x", "x:1,-3",
    "x:0,8", "1x:2", ":", "x:1,8:float32:float32", "x:1000000,1000000,1000000",
]  # fmt: skip


@pytest.mark.parametrize("word", HOPELESS)
def test_an_input_that_cannot_be(cli, folder, word):
    import torch

    torch.save(torch.nn.Linear(8, 4).state_dict(), "net.pt")
    Path("net.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(8, 4)\n")
    done = cli("export", "net.pt", "--model", "net.py:build", "--input", word, "-q")
    assert done.code == 2, done.err
    assert done.err.count("\n") == 1


DEEP = 200_000
NESTED = {
    "json": (("inspect", "deep.json"), b"[" * DEEP + b"]" * DEEP),
    "an object": (("inspect", "deep.json"), b'{"schema":' * DEEP + b"1" + b"}" * DEEP),
    "a plan": ((*CONVERT, "fp16", "--plan", "deep.json"), b"[" * DEEP),
    "a plan's field": (
        (*CONVERT, "fp16", "--plan", "deep.json"), b'{"schema":"mpdeploy.plan/1","x":' + b"[" * DEEP
    ),
    "ranges": ((*CONVERT, "fp16", "--ranges", "deep.json"), b"[" * DEEP),
    "a baseline": (
        ("verify", "net.onnx", "net.onnx", "--data", "data.npz", "--baseline", "deep.json"), b"[" * DEEP
    ),
    "settings": (
        ("verify", "net.onnx", "net.onnx", "--data", "data.npz", "--settings", "deep.json"), b"a = " + b"[" * DEEP
    ),
    "a deployment": (("pipeline", "deep.json"), b"a = " + b"[" * DEEP),
    "a deployment's table": (("pipeline", "deep.json"), b"a = " + b"{b = " * DEEP),
}  # fmt: skip


@pytest.mark.parametrize("name", NESTED)
def test_nesting_beyond_reading(cli, folder, name):
    words, content = NESTED[name]
    Path("deep.json").write_bytes(content)
    done = cli(*words, "-q")
    assert done.code == 2, done.err
    assert done.err.count("\n") == 1


@pytest.mark.timeout(60)
def test_a_folder_with_a_pipe_or_a_device_in_it_is_packed(cli, folder):
    Path("out").mkdir()
    Path("net.onnx").rename("out/net.onnx")
    os.mkfifo("out/pipe.json")
    Path("out/zero.json").symlink_to("/dev/zero")
    done = cli("bundle", "out", "-o", "release")
    assert done.code == 0, done.err


@pytest.mark.parametrize("flag", ["--data", "--plan", "--ranges"])
def test_names_longer_than_any_file_has(cli, folder, flag):
    for length in (250, 255, 300, 5000):
        assert cli(*CONVERT, "fp16", flag, "n" * length).code == 2
        assert cli("inspect", "n" * length).code == 2
        assert cli("bundle", "n" * length).code == 2
