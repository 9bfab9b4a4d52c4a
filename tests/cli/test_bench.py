"""`mpdeploy bench` as a user calls it."""

import json
import subprocess
import sys

import onnx.parser
import pytest

PRODUCT = """<ir_version: 10, opset_import: ["" : 22]>
g (float[N,8] x) => (float[N,N] y) {{
    low = Cast<to={code}>(x)  turned = Transpose<perm=[1,0]>(low)
    product = MatMul(low, turned)  y = Cast<to=1>(product)
}}"""
QUICK = ("--rounds", "1", "--seconds", "0", "--warmup", "0", "--threads", "1")


def bench(*words):
    return subprocess.run(
        [sys.executable, "-m", "mpdeploy", "bench", *map(str, words)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def models(tmp_path):
    paths = []
    for kind, code in (("fp32", 1), ("fp16", 10)):
        paths.append(tmp_path / f"{kind}.onnx")
        paths[-1].write_bytes(onnx.parser.parse_model(PRODUCT.format(code=code)).SerializeToString())
    return paths


def test_one_document_and_a_report(models, tmp_path):
    done = bench(*models, *QUICK, "--batch", "1", "--batch", "4", "--json", "--report", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "report" / "bench.json").read_text())
    assert document["baseline"] == "fp32.onnx · onnxruntime"
    assert [[timing["batch"] for timing in row["timings"]] for row in document["rows"]] == [[1, 4], [1, 4]]


def test_the_table_marks_what_is_no_result(models):
    done = bench(*models, *QUICK)
    assert done.returncode == 0, done.stderr
    assert "fp16.onnx · onnxruntime" in done.stdout
    assert "no result: fp16.onnx · onnxruntime" in done.stdout


def test_an_unusable_model_is_a_line_and_an_exit_code_beside_the_other_rows(models, tmp_path):
    done = bench(tmp_path / "none.onnx", models[0], *QUICK, "--json")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("mpdeploy: not timed: none.onnx · auto: model not found")
    document = json.loads(done.stdout)
    assert [row["name"] for row in document["rows"]] == ["fp32.onnx · onnxruntime"]
    assert [(who["path"], who["exit_code"]) for who in document["unusable"]] == [(str(tmp_path / "none.onnx"), 2)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--runtime", "torch"], "use --runtime emulator or onnxruntime"),
        (["--seconds", "nan"], "nan is not in the range"),
        (["--threads", "100000"], "no runtime works in 100000 threads"),
        (["--dim", "length"], "--dim sequence=128"),
        (["--batch", "0"], "bench --help"),
    ],
)
def test_refusals_are_one_line(models, words, says):
    done = bench(models[0], *QUICK, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
