"""Benchmarks: who runs where, what is compared with what, and what is no result.  Durations are not asserted."""

import multiprocessing
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
    with pytest.raises(UsageError, match=r"torch does not run .*--runtime emulator"):
        bench(contestants([product()], [Runtime.TORCH]), QUICK)


def test_who_cannot_run_does_not_stop_the_others(product, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    found = bench(contestants([broken, tmp_path / "none.onnx", product()], []), QUICK)
    assert [row.name for row in found.rows] == ["fp32.onnx · onnxruntime"]
    assert [(who.name, who.batch, who.exit_code) for who in found.unusable] == [
        ("broken.onnx · auto", None, 2),
        ("none.onnx · auto", None, 2),
    ]
    assert "not timed: broken.onnx · auto: not an ONNX model" in page(found)
    with pytest.raises(UsageError, match=r"not an ONNX model.*broken\.onnx"):
        bench(contestants([broken], []), QUICK)


SAME = """<ir_version: 10, opset_import: ["" : 22]> g (float[N,8] {name}) => (float[N,N] y) {{
    turned = Transpose<perm=[1,0]>({name})  y = MatMul({name}, turned)
}}"""
FIXED = """<ir_version: 10, opset_import: ["" : 22]> g (float[2,8] pixels) => (float[2,8] y) { y = Neg(pixels) }"""


def test_a_batch_size_that_one_cannot_take_is_left_out_of_it_alone(product, text_model):
    found = bench(contestants([product(), text_model(FIXED)], []), QUICK)
    assert [[timing.batch for timing in row.timings] for row in found.rows] == [[1, 2], [2]]
    assert [(who.batch, who.exit_code) for who in found.unusable] == [(1, 2)]
    assert "fixed: 2" in found.unusable[0].what
    assert found.rows[1].timings[0].ratio is not None
    assert found.rows[1].drift == ()  # its first inputs were not those of the others
    assert svg(found).count("<rect") == 3


def test_the_batch_size_is_the_first_ones_if_nobody_says_one(product, text_model):
    few = BenchSettings(rounds=1, seconds=0.0, warmup=0.0, threads=1)
    both = [product(), text_model(FIXED)]
    for paths, batch in ((both[:1], 1), (both[1:], 2), (both[::-1], 2)):
        found = bench(contestants(paths, []), few)
        assert [[timing.batch for timing in row.timings] for row in found.rows] == [[batch]] * len(paths)


def test_inputs_of_other_names_are_the_same_and_other_inputs_are_their_own(product, text_model):
    renamed = text_model(SAME.format(name="pixels"), "renamed.onnx")
    other = text_model(
        """<ir_version: 10, opset_import: ["" : 22]> g (uint8[N,3] x) => (float[N,3] y) { y = Cast<to=1>(x) }""",
        "other.onnx",
    )
    found = bench(contestants([product(), renamed, other], []), QUICK)
    assert found.unusable == ()
    assert [row.drift and row.drift[0].norm_relative for row in found.rows] == [0.0, 0.0, ()]


def test_a_fault_in_the_middle_ends_one_contestant_only(product, text_model):
    """Its worker is killed as soon as the rounds begin."""
    doomed = text_model(SAME.format(name="x"), "doomed.onnx")
    killed = []

    def kill(share, detail):
        if "round 1" in detail and not killed:
            children = (process.pid for process in multiprocessing.active_children())
            killed.append(sorted(children)[-1])
            os.kill(killed[0], signal.SIGKILL)

    found = bench(contestants([product(), doomed], []), QUICK, progress=kill)
    assert [row.name for row in found.rows] == ["fp32.onnx · onnxruntime"]
    assert [(who.name, who.batch, who.exit_code) for who in found.unusable] == [("doomed.onnx · onnxruntime", 1, 3)]


def test_a_batch_of_nothing_and_texts_have_no_drift_and_a_picture(text_model):
    empty = text_model(
        """<ir_version: 10, opset_import: ["" : 22]> g (float[0,8] x) => (float[0,8] y) { y = Neg(x) }"""
    )
    texts = text_model(
        """<ir_version: 10, opset_import: ["" : 22]> g (string[N] x) => (string[N] y) { y = Identity(x) }""", "t.onnx"
    )
    for path in (empty, texts):
        found = bench(contestants([path], []), BenchSettings(rounds=1, seconds=0.0, warmup=0.0, threads=1))
        assert found.rows[0].drift == ()
        assert "<rect" in svg(found)


def test_inputs_larger_than_memory_are_no_fault_of_ours(product):
    with pytest.raises(UsageError, match=r"do not fit into memory .*--batch"):
        bench(contestants([product()], []), BenchSettings(batches=(1 << 50,)))


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
    assert drawing.count("<rect") == 2  # what is no result has no bar
    for row in report.rows:
        assert row.name in drawing
        assert text.count(f'<th scope="row" class="name">{row.name}</th>') == 2
    assert drawing.count("no result") == text.count("no result") == 4
    assert "http:" not in text  # it opens offline
    assert "https:" not in text


def test_openvino_stands_beside_onnx_runtime(product):
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    found = bench(contestants([product("fp32"), product("bf16")], []), QUICK)
    assert found.rows[1].execution.runtime == "openvino"
    assert np.isfinite(found.rows[1].drift[0].norm_relative)
