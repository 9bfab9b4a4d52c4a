"""The report in each of its forms."""

import dataclasses
import re
import shlex

import pytest
from rich.console import Console

from mpdeploy import records
from mpdeploy.errors import UsageError
from mpdeploy.numerics.limits import Metric
from mpdeploy.report.markdown import markdown
from mpdeploy.report.page import page
from mpdeploy.report.pictures import distribution
from mpdeploy.report.record import Report, report_of
from mpdeploy.report.terminal import terminal
from mpdeploy.report.view import metric_text
from mpdeploy.report.write import write_report


def printed(report, width=80):
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as said:
        console.print(terminal(report))
    return said.get()


def test_the_page_stands_alone(full):
    html = page(full)
    assert not re.search(r"https?://|<script|@import|url\(|<link(?![^>]*data:)", html)
    assert "default-src 'none'" in html
    assert len(html.encode()) < 1_000_000


def test_the_verdict_comes_first(full, drift):
    html = page(full)
    body = html[html.index("<body>") :]
    assert body.index("✗ Failed") < body.index("1 of 3 candidates drift over budget") < body.index("digits_bf16.onnx<")
    assert "✓ Passed" in page(report_of(drift()))


def test_the_page_shows_what_the_record_holds(full):
    html = page(full)
    for text in (
        "V201",
        "digits_broken.onnx",
        "MP101",
        "Softmax_999",
        "digits.engine",
        "812 kB",
        "SM 80, SM 86",
        "bf16-mixed",
    ):
        assert text in html, text
    assert html.count('role="img"') == 8  # errors of samples, values twice for each of three, along the network
    assert len(re.findall(r'<svg[^>]+role="img"\s+aria-label="[^"]{20,}"', html)) == html.count("<svg")
    assert "every operator runs in the low precision" in html


def test_what_models_and_data_say_is_escaped(drift):
    evil = dataclasses.replace(drift(names=("<script>alert(1)</script>",)), notes=("<b>bold</b>",))
    html = page(report_of(evil, ("rm '<x>'",)))
    assert "<script" not in html
    assert "<b>bold" not in html
    assert "&lt;script&gt;" in html


def test_a_hostile_node_is_harmless_in_every_form(full):
    odd = "<script>alert(1)</script>\x1b[2J[red]"
    worst = full.drifts[2]
    culprit = dataclasses.replace(worst.blame.culprits[0], node=odd, text=f"'{odd}' overflows", reason=odd)
    layer = dataclasses.replace(worst.blame.layers[950], node=odd, value=odd)
    repair = dataclasses.replace(worst.blame.repair, command=f"mpdeploy convert --keep-fp32 '{odd}'")
    blame = dataclasses.replace(
        worst.blame,
        culprits=(culprit,),
        first_broken=odd,
        layers=(*worst.blame.layers[:950], layer, *worst.blame.layers[951:]),
        repair=repair,
    )
    report = dataclasses.replace(full, drifts=(dataclasses.replace(worst, blame=blame, notes=(odd,)),))
    html = page(report)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 4
    text = printed(report, 200)
    assert "\x1b" not in text
    assert "\\x1b[2J[red]" in text
    assert "<script" not in re.sub(
        r"```.*?```|`[^`\n]*`", "", markdown(report), flags=re.DOTALL
    )  # code is shown as it is


def test_the_json_is_the_record(full, tmp_path):
    html, json = write_report(full, tmp_path / "new" / "folder")
    assert records.load(Report, json) == full
    assert html.read_text().startswith("<!doctype html>")
    with pytest.raises(UsageError, match="schema"):
        records.from_json(Report, json.read_bytes().replace(b"mpdeploy.report/1", b"mpdeploy.report/9"), "r")


def test_the_terminal_fits_80_columns(full, drift):
    for report in (full, report_of(drift()), report_of(drift(names=[f"output_{i}" for i in range(12)]))):
        assert all(len(line) <= 80 for line in printed(report).splitlines())
    text = printed(full)
    assert text.count("PASSED") == 2
    assert text.count("FAILED") == 1
    assert "V201" in text


def test_the_repair_can_be_pasted_into_a_shell(full):
    words = []
    text = printed(full)
    for line in text[text.index("  mpdeploy convert") :].splitlines():
        words += shlex.split(line.removesuffix("\\"))
        if not line.endswith("\\"):
            break
    assert words == shlex.split(full.drifts[2].blame.repair.command)
    assert len(words) > 8


def test_a_broken_candidate_is_shown_without_numbers(drift):
    report = report_of(drift(error=float("nan")))
    assert "not finite" in page(report)
    assert "V101" in printed(report)


def test_the_axis_spans_samples_and_limits():
    bins = [0] * 36
    bins[14] = 5
    picture = distribution([("a", bins, 0.5)])
    assert picture.ticks[0].text == "10⁻⁵"
    assert picture.ticks[-1].text == "1"
    (curve,) = picture.curves
    assert 90 < curve.limit < 100
    assert distribution([("a", [0] * 36, 0.5)]) is None


def test_every_bin_can_be_drawn():
    for i in range(36):
        bins = [0] * 36
        bins[i] = 1
        picture = distribution([("a", bins, None)])
        assert picture.curves[0].outline.count("M") == 1
        assert all(0 <= t.left <= 100 for t in picture.ticks)


@pytest.mark.parametrize(("metric", "value", "text"), [("cosine", 0.9987, "0.9987"), ("sqnr", 40.0, "40.0 dB")])
def test_metrics_are_written_in_their_units(metric, value, text):
    assert metric_text(Metric(metric), value) == text
