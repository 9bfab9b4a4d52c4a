"""`mpdeploy run` as a user calls it."""

import json
import subprocess
import sys

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
