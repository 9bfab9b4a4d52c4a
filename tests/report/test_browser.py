"""The page in a real browser, where one is installed: at two widths, light and dark, silent on the network."""

import html
import json
import re
import shutil
import subprocess

import pypdf
import pytest

from mpdeploy.report import words
from mpdeploy.report.page import page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")

WIDTHS = (360, 1200)
HARNESS = """<!doctype html><meta charset=utf-8><body>{frames}<script>
addEventListener('load', () => {{
  const seen = [...document.querySelectorAll('iframe')].map(f => {{
    const d = f.contentDocument, root = d.documentElement, body = getComputedStyle(d.body);
    const clipped = [...d.querySelectorAll('h1,h2,h3,dd,.pill,.value')].filter(e => e.scrollWidth > e.clientWidth + 1
      && getComputedStyle(e).display !== 'inline').map(e => e.textContent.trim().slice(0, 40));
    return {{wide: root.scrollWidth, inner: root.clientWidth, paper: body.backgroundColor, ink: body.color,
      smallest: Math.min(...[...d.querySelectorAll('main *')].map(e => parseFloat(getComputedStyle(e).fontSize))),
      clipped: clipped,
      fetched: f.contentWindow.performance.getEntriesByType('resource').map(e => e.name),
      plot: d.querySelector('svg').getBoundingClientRect().height}};
  }});
  document.body.innerHTML = '<pre id=seen>' + JSON.stringify(seen) + '</pre>';
}});
</script>"""


def browse(folder, text, dark):
    source = html.escape(text, quote=True)
    frames = "".join(f'<iframe srcdoc="{source}" width="{w}" height="800" style="border:0"></iframe>' for w in WIDTHS)
    target = folder / "harness.html"
    target.write_text(HARNESS.format(frames=frames), encoding="utf-8")
    flags = """--headless --no-sandbox --disable-gpu --disable-background-networking --disable-component-update
        --disable-sync --no-first-run --virtual-time-budget=4000 --dump-dom""".split()
    done = subprocess.run(
        [
            BROWSER,
            *flags,
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--user-data-dir={folder / 'profile'}",
            target.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    return json.loads(html.unescape(found[1]))


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_in_a_browser(full, tmp_path, dark):
    seen = browse(tmp_path, page(full), dark)
    for view, width in zip(seen, WIDTHS, strict=True):
        assert view["wide"] <= view["inner"] <= width, "the page scrolls sideways"
        assert view["clipped"] == []
        assert view["smallest"] >= 11
        assert view["plot"] > 80
        assert view["fetched"] == []
        paper, ink = (sum(map(int, re.findall(r"\d+", view[k])[:3])) for k in ("paper", "ink"))
        assert (paper < ink) == dark


def printed(folder, text, paper):
    """The text of the page's PDF on a paper, one string a sheet."""
    source = text.replace("@page {", f"@page {{ size: {paper};")
    (folder / "page.html").write_text(source, encoding="utf-8")
    subprocess.run(
        [
            BROWSER,
            *"--headless --no-sandbox --disable-gpu --disable-background-networking --disable-sync".split(),
            "--no-first-run",
            "--no-pdf-header-footer",
            f"--user-data-dir={folder / 'profile'}",
            f"--print-to-pdf={folder / 'page.pdf'}",
            (folder / "page.html").as_uri(),
        ],
        capture_output=True,
        timeout=120,
        check=True,
    )
    return [" ".join(sheet.extract_text().split()) for sheet in pypdf.PdfReader(folder / "page.pdf").pages]


@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_the_page_prints_whole(full, tmp_path, paper):
    sheets = printed(tmp_path, page(full), paper)
    text = " ".join(sheets)
    drift = full.drifts[0].outputs[0]
    for heading in (
        "Cosine",
        "Norm-relative",
        "Worst sample",
        "SQNR",
        "Largest error",
        "Mean error",
        "Top-1",
        "NaN, inf",
    ):
        assert heading in text
    assert words.error(drift.mean_abs) in text
    assert f"{drift.candidate_nan}, {drift.candidate_inf}" in text
    headings = re.findall(r"<h2>([^<]+)", page(full))
    assert headings
    for sheet in sheets:  # no heading stands alone at the end of a sheet
        assert not any(sheet.endswith(heading.strip()) for heading in headings)
