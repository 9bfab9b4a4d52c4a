"""`mpdeploy run` as a user calls it."""

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

LOG_OF_EXP = """<ir_version: 10, opset_import: ["" : 22]>
g (float[N] x) => (float[N] y) { low = Cast<to=10>(x)  big = Exp(low)  back = Log(big)  y = Cast<to=1>(back) }"""


def run(*words):
    return subprocess.run(
        [sys.executable, "-m", "mpdeploy", "run", *map(str, words)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "half.onnx"
    path.write_bytes(onnx.parser.parse_model(LOG_OF_EXP).SerializeToString())
    return path


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for i, value in enumerate((1.0, 12.0)):
        np.savez(folder / f"{i}.npz", x=np.full(2, value, np.float32))
    return folder


def test_outputs_of_each_feed_become_a_file(model, data, tmp_path):
    done = run(model, "--data", data, "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["execution"]["evidence"]
    assert report["feeds"] == 2
    assert report["outputs"][0] | {"mean": None} == {
        "name": "y", "dtype": "float32", "shape": [2], "low": 1.0, "high": 1.0, "mean": None, "nan": 0, "inf": 2,
    }  # fmt: skip
    assert np.load(tmp_path / "out" / "0.npz")["y"].tolist() == [1.0, 1.0]
    assert np.isinf(np.load(tmp_path / "out" / "1.npz")["y"]).all()  # exp(12) is beyond half precision


def test_onnx_runtime_hides_the_overflow_and_that_is_said(model, data):
    done = run(model, "--data", data, "--runtime", "onnxruntime")
    assert done.returncode == 0, done.stderr
    assert "infinite" not in done.stdout
    assert "computes half-precision operators in float32" in done.stderr


def test_one_feed_may_become_one_file(model, data, tmp_path):
    single = tmp_path / "single.npz"
    assert run(model, "--data", data / "0.npz", "-o", single).returncode == 0
    before = single.read_bytes()
    done = run(model, "--data", data, "-o", single)
    assert done.returncode == 2
    assert "several feeds" in done.stderr
    assert single.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--runtime", "torch"], 2, "use --runtime emulator or onnxruntime or openvino"),
        (["--runtime", "magic"], 2, "mpdeploy run --help"),
    ],
)
def test_refusals_are_one_line(model, data, words, code, says):
    done = run(model, "--data", data, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_state_dict_runs_with_the_inputs_of_the_data(tmp_path):
    import torch

    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 2)
    torch.save({"state_dict": layer.state_dict()}, tmp_path / "net.pth")
    (tmp_path / "net.py").write_text("from torch import nn\n\n\ndef net():\n    return nn.Linear(4, 2)\n")
    x = np.ones((3, 4), np.float32)
    np.savez(tmp_path / "x.npz", input=x)
    done = run(
        tmp_path / "net.pth", "--model", f"{tmp_path / 'net.py'}:net", "--data", tmp_path / "x.npz", "-o",
        tmp_path / "y.npz",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "in torch" in done.stdout
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["output"], layer(torch.from_numpy(x)).detach(), rtol=1e-6)
    alone = run(tmp_path / "net.pth", "--data", tmp_path / "x.npz")
    assert alone.returncode == 2
    assert "--model FILE.py:FUNCTION" in alone.stderr


def test_what_is_in_the_way_of_the_outputs_stays(model, data, tmp_path):
    """The data themselves, and any folder that no run wrote."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    os.mkfifo(tmp_path / "pipe")
    for place, says in (
        (data, "would replace"),
        (data / "0.npz", "would replace"),
        (tmp_path / "home", "letter.txt"),
        (tmp_path / "pipe", "a device or a pipe"),
    ):
        done = run(model, "--data", place if place.suffix else data, "-o", place)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr
    assert sorted(path.name for path in data.iterdir()) == ["0.npz", "1.npz"]
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"
    assert (tmp_path / "pipe").is_fifo()
    assert np.load(data / "0.npz")["x"].tolist() == [1.0, 1.0]


TEXTS = """<ir_version: 10, opset_import: ["" : 22]>
g (string[N] file, bfloat16[N] b) => (string[N] allow_pickle, bfloat16[N] c) {
    allow_pickle = Identity(file)  c = Add(b, b)
}"""


def test_outputs_of_any_name_and_type_are_written(tmp_path):
    """Texts, BF16, and the names that numpy.savez keeps for itself."""
    from mpdeploy.runtime.npz import read_npz, save_npz

    path = tmp_path / "texts.onnx"
    path.write_bytes(onnx.parser.parse_model(TEXTS).SerializeToString())
    save_npz(tmp_path / "in.npz", {"file": np.array(["a", "über"]), "b": np.array([1.0, 1.5], np.float32)})
    done = run(path, "--data", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert done.returncode == 0, done.stderr
    assert "view(ml_dtypes.bfloat16)" in done.stderr
    with np.load(tmp_path / "out.npz") as written:
        assert written["allow_pickle"].tolist() == ["a", "über"]
        assert written["c"].view(ml_dtypes.bfloat16).tolist() == [2.0, 3.0]
    assert sorted(read_npz(tmp_path / "out.npz")) == ["allow_pickle", "c"]
