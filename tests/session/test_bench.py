"""Benchmarks: who runs where, what is compared with what, and what is no result.  Durations are not asserted."""

import os
import signal

import numpy as np
import pytest

from mpdeploy.errors import ModelError, UsageError
from mpdeploy.runtime.feeds import feeds_of
from mpdeploy.session.bench import BenchSettings, Contestant, bench, contestants
from mpdeploy.session.opening import Runtime
from mpdeploy.session.picture import page, svg, write_bench
from mpdeploy.session.worker import Worker

QUICK = BenchSettings(batches=(1, 2), rounds=2, seconds=0.01, warmup=0.0, threads=1)


@pytest.fixture(scope="module")
def report(product):
    """One small benchmark for all tests that look at its result."""
    entrants = (
        Contestant(product("fp16"), Runtime.ONNXRUNTIME),
        Contestant(product("fp32"), Runtime.ONNXRUNTIME),
        Contestant(product("fp16"), Runtime.EMULATOR),
    )
    return bench(entrants, QUICK, machine="a machine")


def test_ratios_refer_to_fp32_on_onnx_runtime_wherever_it_stands(report):
    assert report.baseline == "fp32.onnx · onnxruntime"
    half, full, emulated = report.rows
    assert [timing.ratio for timing in full.timings] == [1.0, 1.0]
    for row in (half, emulated):
        for timing, base in zip(row.timings, full.timings, strict=True):
            assert timing.ratio == base.latency.median / timing.latency.median
            assert timing.throughput == timing.batch / timing.latency.median


def test_every_batch_has_its_rounds(report):
    for row in report.rows:
        assert [timing.batch for timing in row.timings] == [1, 2]
        assert all(timing.latency.runs >= 3 * QUICK.rounds for timing in row.timings)
        assert row.cold_start_seconds > row.load_seconds + row.first_seconds
        assert row.peak_bytes is None or row.peak_bytes > 20e6


def test_half_precision_that_ran_in_float32_is_no_result(report):
    half, full, emulated = report.rows
    assert "computes half-precision operators in float32" in half.caveat
    assert "emulation" in emulated.caveat
    assert full.caveat == ""


def test_drift_stands_beside_the_times(report):
    half, full, emulated = report.rows
    assert full.drift[0].norm_relative == 0.0
    assert half.drift[0].norm_relative < emulated.drift[0].norm_relative < 1e-2


def test_without_a_baseline_there_is_no_ratio(product):
    alone = bench([Contestant(product("fp16"), Runtime.EMULATOR)], QUICK)
    assert alone.baseline is None
    assert alone.rows[0].timings[0].ratio is None
    assert alone.rows[0].drift == ()
    assert "no result" in page(alone) or "emulation" in page(alone)


def test_data_give_the_rows(product, x):
    found = bench([Contestant(product(), Runtime.ONNXRUNTIME)], QUICK, data=feeds_of([{"x": x}], "three rows"))
    assert found.data == "three rows"
    assert [timing.batch for timing in found.rows[0].timings] == [1, 2]


def test_the_usual_runtime_of_each_file(product):
    found = contestants([product("fp32"), product("fp16"), product("bf16")], [])
    assert [entrant.runtime for entrant in found] == [Runtime.ONNXRUNTIME, Runtime.ONNXRUNTIME, Runtime.OPENVINO]


def test_named_runtimes_apply_to_every_file_that_they_take(product):
    both = [Runtime.EMULATOR, Runtime.OPENVINO, Runtime.TORCH]
    assert [entrant.runtime for entrant in contestants([product()], both)] == both[:2]
    assert len(contestants([product(), product()], both)) == 2
    with pytest.raises(UsageError, match=r"none of the runtimes .*--runtime emulator"):
        contestants([product()], [Runtime.TORCH])


def test_a_contestants_fault_is_the_benchmarks(product, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(UsageError, match=r"not an ONNX model.*broken\.onnx"):
        bench([Contestant(product(), Runtime.ONNXRUNTIME), Contestant(broken, Runtime.ONNXRUNTIME)], QUICK)


def test_a_fault_keeps_its_place_and_remedy_across_processes(product, x):
    with Worker(product(), Runtime.ONNXRUNTIME, 1) as worker:
        worker.opened()
        with pytest.raises(UsageError, match=r"dimension 1 .*\[.*fp32\.onnx\]; give arrays with 8"):
            worker.first({"x": x[:, :7]})


def test_a_killed_contestant_is_told(product, x):
    with Worker(product(), Runtime.ONNXRUNTIME, 1) as worker:
        worker.opened()
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(ModelError, match=r"died .*more memory"):
            worker.timed({"x": x}, 1.0)


def test_the_picture_and_the_page_show_every_contestant(report, tmp_path):
    write_bench(report, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.html", "bench.json", "bench.svg"]
    drawing, text = svg(report), page(report)
    assert drawing.count("<rect") == 6
    for row in report.rows:
        assert row.name in drawing
        assert text.count(f"<td>{row.name}</td>") == 2
    assert drawing.count("(no result)") == 4
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")  # it opens offline


def test_openvino_stands_beside_onnx_runtime(product):
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    found = bench(contestants([product("fp32"), product("bf16")], []), QUICK)
    assert found.rows[1].execution.runtime == "openvino"
    assert np.isfinite(found.rows[1].drift[0].norm_relative)
