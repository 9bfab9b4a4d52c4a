"""`mpdeploy build` as a user calls it: exit codes, one line of error, one JSON document."""

import json
import subprocess
import sys

import numpy as np
import onnx.parser
import pytest

from mpdeploy.engine.loading import read_engine

HALF = """<ir_version: 10, opset_import: ["" : 22]>
half (float[N,8] x) => (float[N,N] y) {
    low = Cast<to=10>(x)  turned = Transpose<perm=[1,0]>(low)  product = MatMul(low, turned)  y = Cast<to=1>(product)
}"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "half.onnx"
    path.write_bytes(onnx.parser.parse_model(HALF).SerializeToString())
    return path


def mpdeploy(*words):
    return subprocess.run(
        [sys.executable, "-m", "mpdeploy", *map(str, words)], capture_output=True, text=True, check=False
    )


def test_an_engine_and_one_json_document(model, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    engine = tmp_path / "half.engine"
    done = mpdeploy(
        "build", model, "-o", engine, "--shapes", "x:1x8:4x8:8x8", "--sm", "8.6", "--expect", "fp16", "--json"
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads(engine.with_name("half.engine.json").read_text())
    assert document["census"]["compute"] == {"fp16": 1}
    assert document["capabilities"] == [86]
    assert engine.stat().st_size == document["engine"]["bytes"]


@pytest.mark.parametrize("flag", ["fp16", "bf16"])
def test_a_precision_flag_is_refused_with_the_way_to_go(model, flag):
    done = mpdeploy("build", model, f"--{flag}")
    assert done.returncode == 2
    assert f"mpdeploy convert MODEL.onnx -o LOW.onnx --precision {flag}" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "add --shapes x:1x8:8x8:32x8"),
        (["--shapes", "x:1x8:4x8:8x8", "--expect", "bf16"], 5, "mpdeploy convert --precision bf16"),
        (["--sm", "90"], 2, "--backend tensorrt"),
        (["--feature", "strip-weights"], 4, "needs a GPU"),
        (["--backend", "neither"], 2, "mpdeploy build --help"),
    ],
)
def test_each_refusal_has_its_exit_code_and_one_line(model, tmp_path, words, code, says):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    engine = tmp_path / "half.engine"
    engine.write_bytes(b"an older engine")
    done = mpdeploy("build", model, "-o", engine, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert engine.read_bytes() == b"an older engine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half.engine", "half.onnx"]


def test_ranges_from_data_the_cache_and_rebuilds(model, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    for rows in (2, 5):
        np.savez(tmp_path / f"{rows}.npz", x=np.zeros((rows, 8), np.float32))
    words = ("build", model, "--data", tmp_path, "--cache", tmp_path / "cache", "--rebuilds", "2")
    first = mpdeploy(*words, "-o", tmp_path / "first.engine")
    assert first.returncode == 0, first.stderr
    assert "x:1x8:5x8:5x8" in first.stdout
    assert "2 builds, 1 distinct" in first.stdout
    second = mpdeploy(*words, "-o", tmp_path / "second.engine")
    assert "build cache" in second.stdout
    assert (tmp_path / "first.engine").read_bytes() == (tmp_path / "second.engine").read_bytes()


def test_a_drift_report_belongs_to_its_model(model, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    reference, data, drift = tmp_path / "fp32.onnx", tmp_path / "data.npz", tmp_path / "drift.json"
    reference.write_bytes(onnx.parser.parse_model(HALF.replace("<to=10>", "<to=1>")).SerializeToString())
    np.savez(data, x=np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32))
    drift.write_text(mpdeploy("verify", reference, model, "--data", data, "--json").stdout)
    words = ("-o", tmp_path / "half.engine", "--shapes", "x:1x8:4x8:8x8", "--drift", drift)
    done = mpdeploy("build", model, *words, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["drift"]["passed"] is True
    wrong = mpdeploy("build", reference, *words)
    assert wrong.returncode == 2
    assert "about another model" in wrong.stderr


def test_two_builds_at_once_give_one_valid_engine(model, tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed")
    words = ["build", model, "-o", tmp_path / "half.engine", "--shapes", "x:1x8:4x8:8x8", "--cache", tmp_path / "cache"]
    command = [sys.executable, "-m", "mpdeploy", *map(str, words)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    read_engine(tmp_path / "half.engine")
    assert len(list((tmp_path / "cache").glob("*.engine"))) == 1
    assert sum(b"build cache" in out for out, _ in said) == 1
