"""The pages for those who do not see them: order of headings, landmarks, tables, pictures, contrast."""

import itertools
import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from mpdeploy.report.page import page
from mpdeploy.report.record import report_of

TEXT_CONTRAST, SIGN_CONTRAST = 4.5, 3.0  # what WCAG 2.2 AA asks of text, and of lines and areas


class Outline(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def named(self, *tags):
        return [found for found in self.tags if found[0] in tags]


@pytest.fixture(params=["three candidates", "one"])
def outline(request, full, drift):
    return Outline(page(full if request.param == "three candidates" else report_of(drift())))


def test_headings_go_down_one_step_at_a_time(outline):
    levels = [int(tag[1]) for tag, _ in outline.named("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_there_are_landmarks_and_a_way_past_the_top(outline):
    assert len(outline.named("main")) == 1
    assert {"header", "footer", "section"} <= {tag for tag, _ in outline.tags}
    skip = next(attrs for tag, attrs in outline.tags if attrs.get("class") == "skip")
    assert skip["href"] == f"#{outline.named('main')[0][1]['id']}"
    assert outline.named("html")[0][1]["lang"] == "en"


def test_every_cell_has_a_header_and_every_scrolling_table_can_be_reached_by_key(outline):
    assert outline.named("table")
    assert all(attrs.get("scope") in ("col", "row") for _, attrs in outline.named("th"))
    regions = [attrs for tag, attrs in outline.tags if "scroll" in attrs.get("class", "").split()]
    assert len(regions) == len(outline.named("table"))
    assert all(attrs["tabindex"] == "0" and attrs["role"] == "region" and attrs["aria-label"] for attrs in regions)


def test_every_picture_says_what_it_shows(outline):
    assert outline.named("svg")
    assert all(attrs["role"] == "img" and len(attrs["aria-label"]) > 20 for _, attrs in outline.named("svg"))
    assert all(attrs.get("alt") for _, attrs in outline.named("img"))
    labelled = [(tag, attrs) for tag, attrs in outline.tags if "aria-label" in attrs]
    assert all(tag in ("section", "nav", "svg") or "role" in attrs for tag, attrs in labelled)  # else it is not read


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


CSS = (resources.files("mpdeploy.report") / "templates" / "report.css").read_text()
SCHEMES = [
    dict(re.findall(r"--(\w+(?:-\w+)?): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{[^}]+\}", CSS)
]


@pytest.mark.parametrize("colours", SCHEMES, ids=["light", "dark"])
def test_text_can_be_read(colours):
    for ink in ("ink", "soft", "tone0", "tone1", "tone2", "tone3", "good", "bad"):
        for paper in ("paper", "card"):
            assert contrast(colours[ink], colours[paper]) >= TEXT_CONTRAST, (ink, paper)
    for word in ("good", "bad"):
        assert contrast(colours[word], colours[f"{word}-wash"]) >= TEXT_CONTRAST
        assert contrast(colours[word], colours["track"]) >= SIGN_CONTRAST


def test_what_failed_is_told_first(full):
    text = page(full)
    cards = text[text.index("<article") : text.index("Error per sample")]
    assert cards.index("digits_broken.onnx") < cards.index("digits_bf16.onnx") < cards.index("digits_fp16.onnx")
