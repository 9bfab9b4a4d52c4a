"""The training page in a real browser, where one is installed: at two widths, light and dark, and printed."""

import pytest

from mpdeploy.report.training import training_page
from tests.report.test_browser import BROWSER, WIDTHS, browse, printed
from tests.report.test_training_page import HEADER, lines_of, record_of, session

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here")


@pytest.fixture(scope="module")
def text():
    runs = (session(last_step=100), session(first_step=100))
    return training_page(HEADER, lines_of(2000), record_of(sessions=runs))


@pytest.mark.parametrize("dark", [False, True])
def test_the_training_page_fits_the_screen(text, tmp_path, dark):
    for view, width in zip(browse(tmp_path, text, dark), WIDTHS, strict=True):
        assert view["wide"] <= view["inner"] <= width, "the page scrolls sideways"
        assert view["clipped"] == []
        assert view["smallest"] >= 11
        assert view["plot"] > 80
        assert view["fetched"] == []


def test_the_training_page_prints_whole(text, tmp_path):
    sheets = printed(tmp_path, text, "A4")
    words = " ".join(sheets)
    for what in ("Learning rate", "Mean loss", "Zero without", "range", "SHA-256", "2,000 points over steps"):
        assert what in words
    for heading in ("Loss", "Learning rate", "Epochs", "How it was trained", "Activations by module"):
        assert not any(sheet.endswith(heading) for sheet in sheets)
