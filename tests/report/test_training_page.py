"""The training page: every step, axes, final metrics, how and where; and what old telemetry still tells."""

import html
import json
import re

import pytest

from mpdeploy.numerics.telemetry import LayerGradients, ModuleRange, Sample, Shares, StepLine, TelemetryHeader
from mpdeploy.numerics.training import EpochRecord, Session, TrainingRecord
from mpdeploy.report.curves import Scale, curve, short, thinned
from mpdeploy.report.training import training_page
from mpdeploy.report.training_facts import duration
from mpdeploy.train.telemetry_file import read_telemetry


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL)))


def sample(format_exponent: int) -> Sample:
    shares = Shares(0.0, 0.0, 0.0)
    exponents = [0.0] * 77
    exponents[format_exponent + 60] = 1.0
    ranges = (ModuleRange("tiny", 0, 2, -1e-39, 1e-39, 1), ModuleRange("big", 0, 2, -7e4, 7e4, 1))
    return Sample((LayerGradients("layer", 10, shares, shares),), -60, tuple(exponents), ranges)


def lines_of(count: int, look: int = 100) -> list[StepLine]:
    return [
        StepLine(
            i,
            2.0 / (i + 1),
            1.0,
            1.0,
            1.0,
            skipped=False,
            skips=0,
            streak=0,
            sample=sample(-10) if i % look == 0 else None,
            learning_rate=1e-3 * (1 - i / count),
        )
        for i in range(count)
    ]


def session(**changes: object) -> Session:
    values = {
        "started": "2026-12-01T10:00:00+00:00",
        "seconds": 250.0,
        "first_step": 0,
        "last_step": 264,
        "level": "bf16-mixed",
        "configuration": "compute bf16",
        "accumulate": 2,
        "processes": 1,
        "sharding": "",
        "device": "cuda:0, NVIDIA H200",
        "processor": "AMD EPYC, 2 cores",
        "threads": 2,
        "torch_version": "2.13",
    }
    return Session(**{**values, **changes})


def record_of(**changes: object) -> TrainingRecord:
    history = tuple(EpochRecord(1.0 / n, 0.5 + 0.1 * n, 0, {"accuracy": 0.5 + 0.1 * n, "F1": None}) for n in (1, 2, 3))
    values = {
        "name": "net",
        "recipe_sha256": "ab" * 32,
        "seed": 7,
        "epochs": 4,
        "steps": 352,
        "batch_size": 64,
        "clip_norm": 1.0,
        "ema_decay": 0.99,
        "optimizer": "AdamW",
        "schedule": "CosineAnnealingLR",
        "metrics": ("accuracy", "F1"),
        "higher_is_better": True,
        "history": history,
        "sessions": (session(),),
        "steps_applied": 264,
        "steps_skipped": 0,
        "finished": True,
    }
    return TrainingRecord(**{**values, **changes})


HEADER = TelemetryHeader("net", "compute bf16", "bf16", 100)


def test_every_step_is_drawn_with_axes_and_all_that_was_decided_is_said():
    # 3 points of 264 steps were drawn, without axes.  (B6)
    page = training_page(HEADER, lines_of(264), record_of())
    text = text_of(page)
    for what in (
        "264 points over steps", "Learning rate 0.001", "Accuracy 0.8", "F1 not finite", "Epochs 3 of 4", "Seed 7",
        "Batch size 64, in 2 parts", "AdamW, CosineAnnealingLR", "2026-12-01 10:00 UTC", "4 min 10 s", "NVIDIA H200",
        "AMD EPYC, 2 cores", "bf16-mixed: compute bf16", "a norm of 1", "decay 0.99", "3 (best)",
    ):  # fmt: skip
        assert what in text, what
    loss = re.search(r'aria-label="Loss[^>]+>\s*<path class="line" d="([^"]+)"', page)[1]
    assert len(re.findall("[ML]", loss)) == 264
    assert page.count('class="level"') >= 8
    assert "<script" not in page


def test_limits_off_the_picture_are_not_drawn_but_said():
    page = training_page(HEADER, lines_of(3))
    assert not re.search(r'class="limit tone\d" style="left:(-|1\d\d)', page)
    assert 'class="limit' not in page, "BF16's smallest number is 2^-133, the gradients lie at 2^-10"
    assert "The smallest number of BF16, 2⁻¹³³, lies to the left of the picture." in text_of(page)


def test_shares_of_the_range_are_said_in_sane_words():
    text = text_of(training_page(TelemetryHeader("net", "c", "fp16", 100), lines_of(3)))
    assert "tiny -10⁻³⁹ 10⁻³⁹ less than 0.01 % 0" in text
    assert "big -70,000 70,000 beyond it 0" in text
    assert not re.search(r"e-\d\d", text)


def test_several_runs_are_listed():
    runs = (session(last_step=100), session(started="2026-12-02T08:00:00+00:00", first_step=100, level="fp16-mixed"))
    text = text_of(training_page(HEADER, lines_of(264), record_of(sessions=runs)))
    assert "8 min 20 s in 2 runs" in text
    assert "2026-12-02 08:00 4 min 10 s 100 to 264 fp16-mixed 1 cuda:0, NVIDIA H200" in text


def test_each_cell_names_its_column_where_a_table_becomes_a_list():
    page = training_page(HEADER, lines_of(3), record_of())
    assert re.findall(r"<td(?! class=\"number\" data-label=\"[^\"]+\")[^>]*>", page) == []


@pytest.mark.parametrize("count", [721, 5000, 100_001])
def test_a_long_curve_is_thinned_and_keeps_its_spikes_and_gaps(count):
    points = [(step, 1.0) for step in range(count)]
    points[count // 2] = (count // 2, 9.0)
    points[count // 3] = (count // 3, -9.0)
    kept = thinned(points)
    assert len(kept) <= 720
    assert {(count // 2, 9.0), (count // 3, -9.0)} <= set(kept)
    assert [step for step, _ in kept] == sorted(step for step, _ in kept)
    gap = [(step, None if step < count // 2 else 1.0) for step in range(count)]
    assert thinned(gap)[0] == (0, None)


@pytest.mark.parametrize(
    ("values", "scale", "levels"),
    [
        ([1e-4, 1.0], Scale.TEN, ["1", "0.1", "0.01", "0.001", "10⁻⁴"]),
        ([0.2, 3.0], Scale.TEN, ["2", "1", "0.5", "0.2"]),
        ([1.0, 1.1], Scale.TEN, ["1.1", "1.075", "1.05", "1.025", "1"]),
        ([0.0, 1.0], Scale.LINEAR, ["1", "0.75", "0.5", "0.25", "0"]),
        ([16.0, 65536.0], Scale.TWO, ["2¹⁵", "2¹²", "2⁹", "2⁶"]),
        ([3.0, 3.0], Scale.LINEAR, ["3"]),
    ],
)
def test_axes_have_round_values_within_the_picture(values, scale, levels):
    drawn = curve("x", list(enumerate(values)), scale)
    assert [text for _, text in drawn.levels] == levels
    assert all(0 <= top <= 100 for top, _ in drawn.levels)


def test_numbers_and_times_are_short():
    assert [short(v) for v in (0.0, 0.0031, 65536.0, 2.5e-5, 1e-39, -1e9)] == [
        "0", "0.0031", "65,536", "2.5·10⁻⁵", "10⁻³⁹", "-10⁹"
    ]  # fmt: skip
    assert [duration(s) for s in (0.1, 8.34, 59.0, 250.0, 7500.0)] == [
        "0.1 s",
        "8.3 s",
        "59 s",
        "4 min 10 s",
        "2 h 5 min",
    ]


def test_telemetry_of_the_first_version_is_still_read(tmp_path):
    line = {
        "step": 0, "loss": 1.5, "grad_norm": 1.0, "scale_before": 1.0, "scale_after": 1.0, "skipped": False, "skips": 0,
        "streak": 0, "sample": None,
    }  # fmt: skip
    header = {"name": "old", "configuration": "c", "format": "fp16", "interval": 100, "schema": "mpdeploy.telemetry/1"}
    path = tmp_path / "telemetry.jsonl"
    path.write_text(f"{json.dumps(header)}\n{json.dumps(line)}\n")
    read, lines = read_telemetry(path)
    assert (read.name, lines[0].loss, lines[0].learning_rate) == ("old", 1.5, None)
    assert "Learning rate not recorded" in text_of(training_page(read, lines))
