"""What every command promises: flags, exit codes, one JSON document, one line for an error, no traceback."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from mpdeploy import errors
from mpdeploy.cli.app import COMMANDS
from mpdeploy.cli.app import cli as group
from mpdeploy.engine.gpu import find_gpus

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[N,16] x) => (float[N,4] logits) {
    [first] h = MatMul(x, w0)  [second] r = Relu(h)  [third] logits = MatMul(r, w1)
}"""

ALWAYS = {"--json", "--quiet", "--debug"}
# The flags that documents, scripts and other people's CI rely on.
FLAGS = {
    "train": {"--precision", "--resume", "-o"},
    "export": {"-o", "--precision", "--data", "--budget", "--engine", "--recipe"},
    "convert": {"-o", "--precision", "--data", "--policy", "--plan", "--keep-fp32", "--op-fp32", "--low-io"},
    "search": {"-o", "--precision", "--data", "--budget"},
    "verify": {"--data", "--budget", "--report"},
    "build": {"-o", "--backend", "--shapes", "--sm"},
    "inspect": set(),
    "doctor": set(),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model, data for it, an invalid model, a recipe; the test stands in it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    model = onnx.parser.parse_model(NET)
    for name, shape in (("w0", (16, 32)), ("w1", (32, 4))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    Path("net.onnx").write_bytes(model.SerializeToString())
    model.graph.node[0].op_type = "MatMull"
    Path("invalid.onnx").write_bytes(model.SerializeToString())
    Path("cut.onnx").write_bytes(Path("net.onnx").read_bytes()[:-100])
    Path("empty.onnx").touch()
    Path("text.onnx").write_text("hello")
    np.savez("data.npz", x=rng.standard_normal((8, 16)).astype(np.float32))
    np.savez("shape.npz", x=np.zeros((8, 3), np.float32))
    Path("recipe.py").write_text("recipe = 1\n")
    return tmp_path


@pytest.mark.parametrize("name", FLAGS)
def test_the_flags_of_a_command(name):
    command = group.get_command(click.Context(group), name)
    known = {word for parameter in command.params for word in parameter.opts}
    assert known >= FLAGS[name] | ALWAYS


def test_every_command_has_help_and_says_what_it_does(cli):
    top = cli("--help")
    assert (top.code, top.err) == (0, "")
    for name, text in COMMANDS.items():
        assert f"{name}" in top.out
        done = cli(name, "--help")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(f"Usage: mpdeploy {name}")
        assert cli(name, "-h").out == done.out
        assert text.endswith(".")
    assert "3 the model cannot be processed" in " ".join(top.out.split())


def test_the_version(cli):
    from mpdeploy import __version__

    assert cli("--version").out == f"mpdeploy, version {__version__}\n"


def test_exit_codes_are_those_of_the_errors():
    codes = {kind.__name__: kind.exit_code for kind in _subclasses(errors.MpdeployError)}
    assert codes == {
        "VerificationFailed": 1,
        "UsageError": 2,
        "ModelError": 3,
        "TrainingDiverged": 3,
        "DependencyError": 4,
        "BuildError": 5,
        "InternalError": 70,
    }
    # The tree that the docstring draws is the tree.
    drawn = [line.partition("── ")[2].split() for line in errors.__doc__.splitlines() if "── " in line]
    assert [words[0] for words in drawn] == list(codes)
    assert all(int(words[1]) == codes[words[0]] for words in drawn if words[1].isdigit())


def _subclasses(kind):
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from _subclasses(child)


def convert(source, output="low.onnx", precision="fp16"):
    return ("convert", source, "-o", output, "--precision", precision)


def verify(*words, data="data.npz"):
    return ("verify", *words, "--data", data)


def build(source, *words):
    return ("build", source, "-o", "out.engine", *words)


RANGE = ("--shapes", "x:1x16:4x16:8x16")
# Each kind of failure: the words, the exit code, what is said.
FAILURES = {
    "unknown command": (("convrt", "net.onnx"), 2, "No such command 'convrt'"),
    "unknown flag": ((*convert("net.onnx"), "--fast"), 2, "No such option"),
    "missing flag": (("convert", "net.onnx", "--precision", "fp16"), 2, "Missing option '-o'"),
    "missing argument": (verify("net.onnx"), 2, "Missing argument 'CANDIDATE'"),
    "surplus argument": (("doctor", "net.onnx"), 2, "unexpected extra argument"),
    "unknown precision": (convert("net.onnx", precision="fp8"), 2, "'fp8' is not one of"),
    "unknown level": (("train", "recipe.py", "--precision", "fp8"), 2, "'fp8' is not one of"),
    "missing model": (convert("none.onnx"), 2, "ONNX file not found [none.onnx]"),
    "missing reference": (verify("none.onnx", "net.onnx"), 2, "not found [none.onnx]"),
    "missing model to build": (build("none.onnx"), 2, "not found [none.onnx]"),
    "missing model to run": (("run", "none.onnx", "--data", "data.npz"), 2, "not found"),
    "missing checkpoint": (("export", "none.pt"), 2, "not found [none.pt]"),
    "missing recipe": (("train", "none.py"), 2, "recipe not found [none.py]"),
    "missing file to inspect": (("inspect", "none"), 2, "file not found [none]"),
    "missing folder to pack": (("bundle", "none", "-o", "out"), 2, "none"),
    "no recipe in it": (("train", "recipe.py"), 2, "defines no recipe"),
    "empty model": (convert("empty.onnx"), 2, "ONNX file is empty"),
    "text for a model": (convert("text.onnx"), 2, "not an ONNX model"),
    "truncated model": (convert("cut.onnx"), 2, "not an ONNX model, or a truncated one"),
    "truncated model to build": (build("cut.onnx"), 2, "truncated"),
    "truncated candidate": (verify("net.onnx", "cut.onnx"), 2, "truncated"),
    "folder for a model": (convert("."), 2, "is a folder, not a file"),
    "folder for an output": (convert("net.onnx", "."), 2, "existing folder"),
    "unwritable output": (convert("net.onnx", "/proc/low.onnx"), 2, "cannot write the output"),
    "unwritable report": ((*verify("net.onnx", "net.onnx"), "--report", "net.onnx/r"), 2, "cannot write the output"),
    "budget that is none": ((*verify("net.onnx", "net.onnx"), "--budget", "good"), 2, "'good' is not a limit"),
    "missing data": (verify("net.onnx", "net.onnx", data="none.npz"), 2, "data file not found [none.npz]"),
    "data of another shape": (verify("net.onnx", "net.onnx", data="shape.npz"), 2, "dimension 1 of input 'x' is 3"),
    "invalid model": (convert("invalid.onnx"), 3, "MatMull"),
    "invalid reference": (verify("invalid.onnx", "net.onnx"), 3, "MatMull"),
    "invalid model to build": (build("invalid.onnx"), 3, "MatMull"),
    "no TensorRT": (build("net.onnx", "--backend", "tensorrt"), 4, "TensorRT"),
    "another format than expected": (build("net.onnx", *RANGE, "--expect", "fp16"), 5, "mpdeploy convert"),
}
NEED_RTX = {"invalid model to build", "another format than expected", "truncated model to build"}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_one_line_its_code_and_nothing_else(cli, folder, name):
    if name in NEED_RTX:
        pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    if name == "no TensorRT" and find_gpus():
        pytest.skip("there is a GPU for which TensorRT may build")
    words, code, says = FAILURES[name]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    plain = cli(*words, "-q")
    assert (plain.code, plain.out) == (code, ""), plain.err
    assert plain.err.startswith("mpdeploy: ")
    assert says in plain.err
    assert plain.err.count("\n") == 1
    # With --json the same line, and one document that says it in parts.
    told = cli(*words, "-q", "--json")
    assert (told.code, told.err) == (code, plain.err)
    fault = told.document["error"]
    assert fault["exit_code"] == code
    assert fault["what"] in plain.err
    assert fault["where"] in plain.err
    assert fault["remedy"] in plain.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


SUCCESSES = {
    "convert": (convert("net.onnx"), 0, "mpdeploy.conversion/1"),
    "verify": (verify("net.onnx", "net.onnx"), 0, "mpdeploy.drift/"),
    "verify over budget": (verify("net.onnx", "other.onnx"), 1, "mpdeploy.drift/"),
    "inspect": (("inspect", "net.onnx"), 0, None),
    "build": (build("net.onnx", *RANGE, "--sm", "86"), 0, "mpdeploy.engine/"),
}  # fmt: skip


@pytest.mark.parametrize("name", SUCCESSES)
def test_a_result_is_alone_on_standard_output(cli, folder, name):
    words, code, schema = SUCCESSES[name]
    if name == "build":
        pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    model = onnx.load("net.onnx")
    halved = numpy_helper.to_array(model.graph.initializer[0]) / 2
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(halved, "w0"))
    onnx.save(model, "other.onnx")
    plain = cli(*words, "-q")
    assert (plain.code, plain.err) == (code, "")
    assert plain.out.strip()
    told = cli(*words, "--json", "-q")
    assert (told.code, told.err) == (code, "")
    assert (told.document.get("schema") or "").startswith(schema or "")


# --- through the real program


def program(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "mpdeploy", *words], capture_output=True, text=True, check=False, **options
    )


def test_debug_shows_the_traceback_and_the_line(folder):
    done = program("inspect", "none", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("mpdeploy: file not found [none]")


BROKEN = """
import sys
import mpdeploy.conversion.api
def convert(*args, **words):
    raise RuntimeError("a bug\\nof two lines")
mpdeploy.conversion.api.convert = convert
from mpdeploy.cli import main
main(sys.argv[1:])
"""


def test_a_fault_of_ours_is_70_one_line_and_a_document(folder):
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, *convert("net.onnx"), "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 70
    assert done.stderr == (
        "mpdeploy: RuntimeError: a bug of two lines; this is a fault of mpdeploy; --debug shows the traceback\n"
    )
    assert json.loads(done.stdout)["error"]["exit_code"] == 70
    debug = subprocess.run(
        [sys.executable, "-c", BROKEN, *convert("net.onnx"), "--debug"], capture_output=True, text=True, check=False
    )
    assert 'raise RuntimeError("a bug' in debug.stderr or "in convert" in debug.stderr
    assert debug.returncode == 70


def test_a_reader_that_goes_away_is_no_error(folder):
    process = subprocess.Popen(
        [sys.executable, "-m", "mpdeploy", "inspect", "net.onnx", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 0
    process.stderr.close()


def test_the_program_and_the_module_are_one(folder):
    script = Path(sys.executable).with_name("mpdeploy")
    if script.exists():  # it is not where the package is only on the path
        done = subprocess.run([script, "inspect", "net.onnx"], capture_output=True, text=True, check=False)
        assert done.stdout == program("inspect", "net.onnx").stdout


def test_a_terminal_that_lacks_a_sign_is_no_error(folder):
    Path("größe.onnx").write_bytes(Path("net.onnx").read_bytes())
    done = program("inspect", "größe.onnx", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(r"gr\xf6\xdfe.onnx: ONNX")
